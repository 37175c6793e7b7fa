"""What is said of input that cannot be used: what was given, what was expected and what to do.

Without torch, so that a command can refuse its arguments at once; `hessianlens.checks` has the checks of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used; the message names the argument, what it got and what was expected."""


def expect(condition: bool, message: str) -> None:
    """Raise `InputError` with `message` unless `condition` holds."""
    if not condition:
        raise InputError(message)


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """`value` is one of the named choices."""
    listed = list(choices)
    expect(value in listed, f"{name}: got {value!r}, expected one of {', '.join(map(repr, listed))}.")
