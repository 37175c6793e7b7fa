"""The names of the matrices that make up the curvature: one vocabulary for every call."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.errors import InputError, check_choice, describe_value

PARTS = ("full", "ggn", "functional")
"""The Hessian, its Gauss-Newton part, and the difference of the two."""
LAYER_PARTS = ("outer", "functional", "full")
"""The same in the words and the order of the literature on attention layers, where Gauss-Newton is outer product."""
_ALIASES = {"outer": "ggn"}
PART_NAMES = (*PARTS, *_ALIASES)
"""Every name that is understood."""
METHODS = ("auto", "exact", "products")
"""How a block may be found: exactly where that is worth it, exactly whatever it takes, or by products alone."""
NORM_METHODS = ("auto", "exact", "sketch", "probes", "products")
"""How a norm may be found; its products are those with random probes, so that the last two are the same."""


def part_name(part: str, argument: str = "part") -> str:
    """The part that is meant, as one of `PARTS`.

    >>> part_name("outer"), part_name("ggn"), part_name("full")
    ('ggn', 'ggn', 'full')
    """
    check_choice(argument, part, PART_NAMES)
    return _ALIASES.get(part, part)


def norm_method(method: str) -> str:
    """How a norm is to be found: "auto", "exact", "sketch" or "probes".

    >>> norm_method("products"), norm_method("sketch")
    ('probes', 'sketch')
    """
    check_choice("method", method, NORM_METHODS)
    return "probes" if method == "products" else method


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Some of the parts, as names of `PARTS`, each once.

    >>> check_parts(("full", "outer"))
    ('full', 'ggn')
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        got = "none" if isinstance(parts, Sequence) and not parts else describe_value(parts)
        raise InputError(f"parts: got {got}, expected some of {', '.join(map(repr, PARTS))}, as a tuple.")
    return tuple(dict.fromkeys(part_name(part, "parts") for part in parts))
