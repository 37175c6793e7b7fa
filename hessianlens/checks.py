"""Checks of tensors that users give; see `hessianlens.errors` for what the messages say."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from hessianlens.errors import InputError, describe_value, expect

P = ParamSpec("P")
R = TypeVar("R")

_NARROWEST = 2
"""Bytes of a number; those of one byte only store numbers."""


def check_dense(name: str, value: object, wanted: str = "torch tensor", allow_meta: bool = False) -> Tensor:
    """A tensor that holds all of its numbers: not sparse, not quantised, not on the meta device unless `allow_meta`.

    >>> check_dense("X", torch.eye(2).to_sparse())
    Traceback (most recent call last):
    hessianlens.errors.InputError: X: got a sparse tensor (torch.sparse_coo), expected a dense one; ... .to_dense().
    """
    if not isinstance(value, Tensor):
        raise InputError(f"{name}: got {type(value).__name__}, expected a {wanted}; wrap it with torch.as_tensor.")
    # every product of an operator passes here, so that messages are put together only where they are needed
    if value.layout != torch.strided:
        raise InputError(
            f"{name}: got a sparse tensor ({value.layout}), expected a dense one; convert it with .to_dense()."
        )
    if value.is_quantized:
        raise InputError(f"{name}: got quantised numbers ({value.dtype}), expected floating ones.")
    if value.is_meta and not allow_meta:
        raise InputError(f"{name}: got a tensor on the meta device, which holds a shape and no numbers.")
    return value


PRECISIONS = (torch.float32, torch.float64)
"""What derivatives can be computed in: of second derivatives in half precision no digit is left."""


def check_tensor(name: str, value: object, ndim: Iterable[int]) -> Tensor:
    """A dense, non-empty, finite tensor in float32 or float64 with one of the given numbers of dimensions."""
    dims = tuple(ndim)
    wanted = " or ".join(f"{n}-dimensional" for n in dims)
    value = check_dense(name, value, f"{wanted} torch tensor")
    expect(value.ndim in dims, f"{name}: got shape {tuple(value.shape)}, expected a {wanted} tensor.")
    expect(
        value.dtype in PRECISIONS,
        f"{name}: got dtype {value.dtype}, expected a floating dtype, float32 or float64; convert it with .double() or "
        ".float().",
    )
    expect(
        value.numel() > 0,
        f"{name}: got an empty tensor of shape {tuple(value.shape)}, expected no axis of size 0.",
    )
    check_finite(name, value)
    return value


def all_finite(value: Tensor) -> bool:
    """Whether every entry is a finite number; the smallest and the largest tell, in one pass.

    >>> all_finite(torch.tensor([1.0, 2.0])), all_finite(torch.tensor([1.0, torch.nan])), all_finite(torch.ones(0))
    (True, False, True)
    """
    known = value.detach() if value.requires_grad else value
    return value.numel() == 0 or all(math.isfinite(float(end)) for end in torch.aminmax(known))


def check_finite(name: str, value: Tensor) -> None:
    """Every entry is a finite number."""
    if not all_finite(value):
        finite = torch.isfinite(value)
        bad = int((~finite).sum())
        where = tuple((~finite).nonzero()[0].tolist())
        raise InputError(
            f"{name}: got {bad} non-finite of {value.numel()} entries (the first at index {where}), "
            "expected finite numbers only."
        )


def check_precision(name: str, dtype: object) -> torch.dtype:
    """A dtype in which second derivatives have digits.

    >>> check_precision("dtype", torch.bfloat16)
    Traceback (most recent call last):
    hessianlens.errors.InputError: dtype: got torch.bfloat16, expected torch.float32 or torch.float64.
    """
    if not isinstance(dtype, torch.dtype) or dtype not in PRECISIONS:
        raise InputError(f"{name}: got {describe_value(dtype)}, expected torch.float32 or torch.float64.")
    return dtype


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


def check_device(device: object, allow_meta: bool = False) -> torch.device:
    """A device that numbers can be put on here; the meta device, which holds none, only if that is asked for.

    >>> check_device("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(device)  # type: ignore[call-overload]
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError) as error:
        raise InputError(
            f"device: got {describe_value(device)}, which cannot be used here; expected one such as cpu or cuda."
        ) from error
    expect(
        allow_meta or found.type != "meta",
        "device: got 'meta', which holds shapes and no numbers; expected one such as cpu.",
    )
    return found


def check_dtype(dtype: object) -> torch.dtype:
    """A floating dtype."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point or dtype.itemsize < _NARROWEST:
        raise InputError(f"dtype: got {describe_value(dtype)}, expected a floating dtype such as torch.float64.")
    return dtype


def renamed_arguments(**new: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: earlier names of keyword arguments, by the present ones, are taken with a DeprecationWarning.

    >>> @renamed_arguments(tol="rtol")
    ... def accuracy(rtol=0.1):
    ...     return rtol
    >>> with warnings.catch_warnings(action="ignore"):
    ...     accuracy(tol=0.2), accuracy(rtol=0.3)
    (0.2, 0.3)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in new.keys() & kwargs.keys():
                name = new[old]
                expect(name not in kwargs, f"{old}: got both {old} and {name}, its present name; expected one.")
                warnings.warn(f"{function.__name__}: {old}= is now {name}=", DeprecationWarning, stacklevel=2)
                kwargs[name] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
