"""What is said of input that cannot be used: what was given, what was expected and what to do.

Without torch, so that a command can refuse its arguments at once; `hessianlens.checks` has the checks of tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class InputError(ValueError):
    """Input that cannot be used; the message names the argument, what it got and what was expected."""


def expect(condition: bool, message: str) -> None:
    """Raise `InputError` with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def shown(value: object) -> str:
    """A value in a message: one short line, whatever it is.

    >>> import torch
    >>> shown("both"), shown(torch.zeros(3, 4)), shown([0] * 100)
    ("'both'", 'Tensor of shape (3, 4)', '[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 ...')
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} of shape {tuple(shape)}"
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59].rstrip(' ,')} ..."


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the named choices."""
    listed = list(choices)
    known = isinstance(value, Hashable) and value in listed  # an array in a list is no question of true or false
    expect(known, f"{name}: got {shown(value)}, expected one of {', '.join(map(repr, listed))}.")


def check_flag(name: str, value: object) -> None:
    """`value` is True or False."""
    expect(isinstance(value, bool), f"{name}: got {shown(value)}, expected True or False.")
