"""Checks of user input: every message says what was given, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import torch
from torch import Tensor


class InputError(ValueError):
    """Input that cannot be used; the message names the argument, what it got and what was expected."""


def expect(condition: bool, message: str) -> None:
    """Raise `InputError` with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def shown(value: object) -> str:
    """A value in a message: one short line, whatever it is.

    >>> shown("both"), shown(torch.zeros(3, 4)), shown([0] * 100)
    ("'both'", 'a tensor of shape (3, 4)', '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 ...')
    """
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"a NumPy array of shape {value.shape}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59].rstrip(' ,')} ..."


def check_tensor(name: str, value: object, ndim: Iterable[int]) -> Tensor:
    """A non-empty, finite, floating tensor with one of the given numbers of dimensions."""
    dims = tuple(ndim)
    wanted = " or ".join(f"{n}-dimensional" for n in dims)
    if not isinstance(value, Tensor):
        raise InputError(
            f"{name}: got {type(value).__name__}, expected a {wanted} torch tensor; wrap it with torch.as_tensor."
        )
    expect(value.ndim in dims, f"{name}: got shape {tuple(value.shape)}, expected a {wanted} tensor.")
    expect(
        value.is_floating_point(),
        f"{name}: got dtype {value.dtype}, expected a floating dtype; convert it with .double() or .float().",
    )
    expect(
        value.numel() > 0,
        f"{name}: got an empty tensor of shape {tuple(value.shape)}, expected no axis of size 0.",
    )
    check_finite(name, value)
    return value


def check_finite(name: str, value: Tensor) -> None:
    """Every entry is a finite number."""
    finite = torch.isfinite(value)
    if not bool(finite.all()):
        bad = int((~finite).sum())
        where = tuple((~finite).nonzero()[0].tolist())
        raise InputError(
            f"{name}: got {bad} non-finite of {value.numel()} entries (the first at index {where}), "
            "expected finite numbers only."
        )


def check_shape(name: str, value: Tensor, expected: tuple[int, ...], why: str) -> None:
    """`value` has exactly the expected shape."""
    expect(
        tuple(value.shape) == tuple(expected),
        f"{name}: got shape {tuple(value.shape)}, expected {tuple(expected)} ({why}).",
    )


def check_same_kind(tensors: Mapping[str, Tensor]) -> None:
    """All tensors share one dtype and one device."""
    for attribute, remedy in (("dtype", ".to(dtype)"), ("device", ".to(device)")):
        kinds = {name: getattr(value, attribute) for name, value in tensors.items()}
        if len(set(kinds.values())) > 1:
            listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
            raise InputError(
                f"Tensors of different {attribute}: {listed}; expected one {attribute}, convert with {remedy}."
            )


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the named choices."""
    listed = list(choices)
    known = isinstance(value, Hashable) and value in listed  # an array in a list is no question of true or false
    expect(known, f"{name}: got {shown(value)}, expected one of {', '.join(map(repr, listed))}.")


def check_flag(name: str, value: object) -> None:
    """`value` is True or False."""
    expect(isinstance(value, bool), f"{name}: got {shown(value)}, expected True or False.")


def check_device(device: object) -> torch.device:
    """A device that numbers can be put on here.

    >>> check_device("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(device)  # type: ignore[call-overload]
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        raise InputError(
            f"device: got {shown(device)}, which cannot be used here; expected one such as cpu or cuda."
        ) from error
    expect(found.type != "meta", "device: got 'meta', which holds shapes and no numbers; expected one such as cpu.")
    return found
