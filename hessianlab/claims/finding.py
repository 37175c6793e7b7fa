"""What the test of a claim found; the verdict is computed from the checks and cannot be typed in."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from hessianlab.claims.check import Check
from hessianlens.errors import InputError


class Verdict(str, Enum):
    """The five possible verdicts."""

    HOLDS = "holds"
    HOLDS_IF = "holds if"
    FAILS = "fails"
    NEEDS_TRAINING = "needs training"
    NOT_CHECKABLE = "not checkable here"

    def __str__(self) -> str:
        return self.value


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
        told: Numbers that condition and correction name, by the name they have there.
        undecided: Why the measurements do not decide, if they do not; the claim then still needs training.
        curves: Data for a plot, where one helps.
        condition: The condition under which the claim is true; comes from its text, by `worded`.
        correction: What is true instead; comes from its text, by `worded`.
    """

    checks: tuple[Check, ...]
    conditional: tuple[Check, ...] = ()
    support: tuple[Check, ...] = ()
    example: str = ""
    told: Mapping[str, str | float] = field(default_factory=dict)
    undecided: str = ""
    curves: Curves | None = field(default=None, compare=False)
    condition: str = ""
    correction: str = ""

    def worded(self, condition: str, correction: str) -> Finding:
        """The same with its words, in which ``{name}`` and ``{name:format}`` become the numbers told.

        >>> Finding((), told={"share": 0.347}).worded("", "It is {share:.2f}.").correction
        'It is 0.35.'
        """
        named = {name for text in (condition, correction) for _, name, _, _ in string.Formatter().parse(text) if name}
        if named != set(self.told):
            raise InputError(f"the text names the numbers {sorted(named)}, the test tells {sorted(self.told)}.")
        return replace(self, condition=condition.format(**self.told), correction=correction.format(**self.told))

    @property
    def verdict(self) -> Verdict:
        """Computed from the checks."""
        if self.undecided:
            return Verdict.NEEDS_TRAINING
        if self.checks and all(check.passed for check in self.checks):
            return Verdict.HOLDS
        if self.conditional and all(check.passed for check in self.conditional):
            return Verdict.HOLDS_IF
        return Verdict.FAILS

    @property
    def confirmed(self) -> bool:
        """Whether what is said about the claim is itself supported.

        The correction's own checks pass, and a claim that does not simply hold shows its example, with a condition or
        a correction.
        """
        supported = all(check.passed for check in self.support)
        if self.verdict in (Verdict.HOLDS, Verdict.NEEDS_TRAINING):
            return supported
        told = bool(self.condition if self.verdict is Verdict.HOLDS_IF else self.correction)
        return told and bool(self.example) and supported
