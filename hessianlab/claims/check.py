"""One comparison of a measured number with what a claim says about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Check:
    """A measured figure, the threshold stated beside it, and whether it is met.

    Attributes:
        what: What was measured, over how many seeds and shapes.
        measured: The figure, as text.
        wanted: The threshold or the expected value, as text.
        passed: Whether the figure is as wanted.
    """

    what: str
    measured: str
    wanted: str
    passed: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.measured} (wanted {self.wanted}: {'yes' if self.passed else 'no'})"


Figures: TypeAlias = float | Iterable[float]
"""One number, or several, of which the one that decides is told."""


def at_most(what: str, value: Figures, limit: float) -> Check:
    """Passes if ``value <= limit``, the largest of several; a number that is not finite fails.

    >>> print(at_most("largest gap", [2e-15, 1e-15], 1e-10))
    largest gap: 2e-15 (wanted at most 1e-10: yes)
    """
    value = _deciding(value, lambda v: v)
    return Check(what, f"{value:.3g}", f"at most {limit:g}", math.isfinite(value) and value <= limit)


def at_least(what: str, value: Figures, limit: float) -> Check:
    """Passes if ``value >= limit``, the smallest of several."""
    value = _deciding(value, lambda v: -v)
    return Check(what, f"{value:.3g}", f"at least {limit:g}", math.isfinite(value) and value >= limit)


def close(what: str, value: Figures, expected: float, within: float) -> Check:
    """Passes if `value` is within `within` of `expected`, the farthest of several."""
    value = _deciding(value, lambda v: abs(v - expected))
    passed = math.isfinite(value) and abs(value - expected) <= within
    return Check(what, f"{value:.4g}", f"{expected:g} within {within:g}", passed)


def _deciding(value: Figures, key: Callable[[float], float]) -> float:
    """The number with the largest key; one that is not a number beats all."""
    if not isinstance(value, Iterable):
        return value
    return max(value, key=lambda v: math.inf if math.isnan(v) else key(v))


def equal(what: str, value: object, expected: object) -> Check:
    """Passes if both are equal."""
    return Check(what, str(value), str(expected), value == expected)


def true(what: str, value: bool) -> Check:
    """Passes if the statement `what` is true."""
    return Check(what, "true" if value else "false", "true", bool(value))


def share(what: str, hits: int, of: int, least: float = 1.0) -> Check:
    """Passes if at least the share `least` of the cases are hits."""
    return Check(what, f"{hits} of {of}", f"at least {least:.0%}", of > 0 and hits >= least * of)


def as_printed(what: str, values: Sequence[float], printed: Sequence[str]) -> Check:
    """Passes if every value, rounded to the digits the document printed, reads as printed.

    A value exactly between two roundings may go either way, so half a unit of the last printed digit is allowed.

    >>> print(as_printed("softmax", [0.2817, 0.0571], [".28", ".05"]))
    softmax: 0.28, 0.06 (wanted .28, .05: no)
    """
    digits = [len(text.split(".")[1]) if "." in text else 0 for text in printed]
    passed = len(values) == len(printed) and all(
        abs(value - float(text)) <= 0.5 * 10.0**-n * (1 + 1e-9)
        for value, text, n in zip(values, printed, digits, strict=True)
    )
    shown = ", ".join(f"{value:.{n}f}" for value, n in zip(values, digits, strict=False))
    return Check(what, shown, ", ".join(printed), passed)
