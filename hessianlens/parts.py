"""The names of the matrices that make up the curvature."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.errors import InputError, check_choice

PARTS = ("full", "ggn", "functional")
"""The Hessian, its Gauss-Newton part, and the difference of the two."""


def check_parts(parts: Sequence[str]) -> None:
    """Some of the parts, each by its name.

    >>> check_parts(("full", "ggn"))
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        got = "none" if isinstance(parts, Sequence) and not parts else repr(parts)
        raise InputError(f"parts: got {got}, expected some of {', '.join(map(repr, PARTS))}, as a tuple.")
    for part in parts:
        check_choice("parts", part, PARTS)
