"""A finding: what the test of a claim measured, check by check, and the verdict that follows."""

from __future__ import annotations

import math
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

from hessianlens.errors import InputError


@dataclass(frozen=True)
class Check:
    """A measured figure, the threshold stated beside it, and whether it is met.

    Attributes:
        what: The measured quantity, over how many seeds and shapes.
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
"""One number, or several, of which the decisive one is displayed."""


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


class Verdict(StrEnum):
    """The six possible verdicts; docs/laboratory/claims.md has the rules.

    ``holds``: in everything that was tried. ``holds if``: in some of it, and the condition that separates was found.
    ``fails``: a counterexample to what is said without a condition. ``misprint``: a slip of the pen whose correction is
    beyond doubt. ``not seen at this size``: a statement about models in use of which small ones show nothing, in no
    condition that was tried. ``open``: measurements that do not decide, or nothing to measure.
    """

    HOLDS = "holds"
    HOLDS_IF = "holds if"
    FAILS = "fails"
    MISPRINT = "misprint"
    NOT_SEEN = "not seen at this size"
    OPEN = "open"


Points: TypeAlias = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]
"""x and y by the name of a curve."""


@dataclass(frozen=True)
class Curves:
    """Numbers worth a picture: named curves over one axis. Drawn elsewhere.

    Attributes:
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        curves: Points by name of the curve.
        log_x: Logarithmic horizontal axis.
        log_y: Logarithmic vertical axis.
    """

    x_label: str
    y_label: str
    curves: Points
    log_x: bool = False
    log_y: bool = False

    @classmethod
    def log_log(cls, x_label: str, y_label: str, curves: Points) -> Curves:
        """Both axes logarithmic: a power law is a straight line."""
        return cls(x_label, y_label, curves, log_x=True, log_y=True)


@dataclass(frozen=True)
class Finding:
    """The checks of a claim and what to say about them.

    Attributes:
        checks: The claim as written. It holds if all of them pass.
        conditional: The claim under its condition; it holds if ... when these pass and some of `checks` do not.
        support: Checks that what the correction says is true instead.
        example: The smallest example that shows the failure, with its numbers.
        numbers: Numbers that condition and correction name, by the name they have there.
        undecided: Why the measurements do not decide, if they do not; the claim is then open.
        not_seen: Whether a claim about larger models that does not hold here is merely not seen at this size.
        misprint: Whether a claim that fails is a slip of the pen; comes from its text, by `worded`.
        curves: Data for a plot, where one helps.
        condition: The condition under which the claim is true; comes from its text, by `worded`.
        correction: What is true instead; comes from its text, by `worded`.
    """

    checks: tuple[Check, ...]
    conditional: tuple[Check, ...] = ()
    support: tuple[Check, ...] = ()
    example: str = ""
    numbers: Mapping[str, str | float] = field(default_factory=dict)
    undecided: str = ""
    not_seen: bool = False
    misprint: bool = False
    curves: Curves | None = field(default=None, compare=False)
    condition: str = ""
    correction: str = ""

    def worded(self, condition: str, correction: str, misprint: bool = False) -> Finding:
        """The same with its words, in which ``{name}`` and ``{name:format}`` become these numbers.

        >>> Finding((), numbers={"share": 0.347}).worded("", "It is {share:.2f}.").correction
        'It is 0.35.'
        """
        named = {name for text in (condition, correction) for _, name, _, _ in string.Formatter().parse(text) if name}
        if named != set(self.numbers):
            raise InputError(f"the text names the numbers {sorted(named)}, the test gives {sorted(self.numbers)}.")
        condition, correction = (text.format(**self.numbers) for text in (condition, correction))
        return replace(self, condition=condition, correction=correction, misprint=misprint)

    @property
    def verdict(self) -> Verdict:
        """Computed from the checks."""
        if self.undecided:
            return Verdict.OPEN
        if self.checks and all(check.passed for check in self.checks):
            return Verdict.HOLDS
        if self.conditional and all(check.passed for check in self.conditional):
            return Verdict.HOLDS_IF
        if self.misprint:
            return Verdict.MISPRINT
        return Verdict.NOT_SEEN if self.not_seen else Verdict.FAILS

    @property
    def confirmed(self) -> bool:
        """Whether what is said about the claim is itself supported.

        The correction's own checks pass, and a claim that does not simply hold shows its example, with a condition or
        a correction.
        """
        supported = all(check.passed for check in self.support)
        if self.verdict in (Verdict.HOLDS, Verdict.OPEN):
            return supported
        explained = bool(self.condition if self.verdict is Verdict.HOLDS_IF else self.correction)
        return explained and bool(self.example) and supported
