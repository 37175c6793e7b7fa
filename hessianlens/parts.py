"""The names of the matrices that make up the curvature: one vocabulary for every call."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.errors import InputError, check_choice, describe_value
from hessianlens.renames import present_value

PARTS = ("full", "ggn", "functional")
"""The Hessian, its Gauss-Newton part, and the difference of the two."""
LAYER_PARTS = ("outer", "functional", "full")
"""The same in the words and the order of the literature on attention layers, where Gauss-Newton is outer product."""
_ALIASES = {"outer": "ggn"}
PART_NAMES = (*PARTS, *_ALIASES)
"""Every name that is understood."""
METHODS = ("auto", "exact", "hvp")
"""How a block may be had: in closed form where that is worth it, in closed form whatever it takes, or matrix-free."""
PAIR_METHODS = ("auto", "exact", "probes")
"""How a norm off the diagonal may be had."""
NORM_METHODS = ("auto", "exact", "sketch", "probes")
"""How a norm may be had."""
_BY_HVPS = "hvp"
"""In every call: by Hessian-vector products alone, the last one of each."""
_EARLIER_METHODS = {"products": _BY_HVPS}


def part_name(part: str, argument: str = "part") -> str:
    """The part that is meant, as one of `PARTS`.

    >>> part_name("outer"), part_name("ggn"), part_name("full")
    ('ggn', 'ggn', 'full')
    """
    check_choice(argument, part, PART_NAMES)
    return _ALIASES.get(part, part)


def method_name(method: str, known: Sequence[str] = METHODS) -> str:
    """One of the known methods; "hvp" is the last of them, whatever its name is.

    >>> method_name("exact"), method_name("hvp"), method_name("hvp", NORM_METHODS)
    ('exact', 'hvp', 'probes')
    """
    if isinstance(method, str) and method in _EARLIER_METHODS:
        method = present_value("method", method, _EARLIER_METHODS)
    if method == _BY_HVPS:
        return known[-1]
    check_choice("method", method, known)
    return method


def check_parts(parts: Sequence[str]) -> tuple[str, ...]:
    """Some of the parts, as names of `PARTS`, each once.

    >>> check_parts(("full", "outer"))
    ('full', 'ggn')
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        got = "none" if isinstance(parts, Sequence) and not parts else describe_value(parts)
        raise InputError(f"parts: got {got}, expected some of {', '.join(map(repr, PARTS))}, as a tuple.")
    return tuple(dict.fromkeys(part_name(part, "parts") for part in parts))
