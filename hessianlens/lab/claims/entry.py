"""One line of the ledger: a claim, what its test found, how long that took and where the test lives."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hessianlens
from hessianlens.lab.claims.check import Check
from hessianlens.lab.claims.definition import Claim
from hessianlens.lab.claims.finding import Finding, Verdict

_PACKAGE = Path(hessianlens.__file__).parent


@dataclass(frozen=True)
class Entry:
    """A claim with its verdict.

    Attributes:
        claim: What was tested.
        finding: What the test found; absent for a claim without a test and after an error.
        error: What the test raised, if it did.
        seconds: How long the test took.
    """

    claim: Claim
    finding: Finding | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict | None:
        """From the finding, or the claim's own if it has no test; None after an error."""
        return self.finding.verdict if self.finding else self.claim.unmeasured if not self.error else None

    @property
    def sound(self) -> bool:
        """Whether there is a verdict and what is said about it is itself supported."""
        return self.verdict is not None and (self.finding is None or self.finding.confirmed)

    @property
    def location(self) -> str:
        """File and line of the claim, as ``hessianlens/.../topic.py:12``."""
        file, line = _source(self.claim)
        shown = Path("hessianlens") / file.relative_to(_PACKAGE) if file.is_relative_to(_PACKAGE) else file
        return f"{shown.as_posix()}:{line}" if line else shown.as_posix()

    @property
    def figures(self) -> tuple[str, ...]:
        """Every check as one line; one that serves twice is told once."""
        return tuple(dict.fromkeys(map(str, _checks(self.finding)))) if self.finding else ()

    def to_dict(self) -> dict[str, Any]:
        """Everything a machine may want, as JSON values."""
        claim, finding = self.claim, self.finding
        told: dict[str, Any] = {
            "id": claim.id,
            "document": claim.document,
            "topic": claim.topic,
            "source": claim.source,
            "statement": claim.statement,
            "method": claim.method,
            "verdict": str(self.verdict) if self.verdict else None,
            "reason": claim.reason,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "location": self.location,
        }
        if finding is None:
            return told
        parts = {
            name: [vars(check) for check in getattr(finding, name)] for name in ("checks", "conditional", "support")
        }
        words = {name: getattr(finding, name) for name in ("condition", "correction", "example", "confirmed")}
        return told | parts | words


def _checks(finding: Finding) -> tuple[Check, ...]:
    return finding.checks + finding.conditional + finding.support


def _source(claim: Claim) -> tuple[Path, int | None]:
    """The decorated function, or the line of the topic's file that gives the id."""
    if claim.test is not None:
        code = inspect.unwrap(claim.test).__code__
        return Path(code.co_filename), code.co_firstlineno
    file = Path(__file__).parent / "topics" / f"{claim.topic.replace(' ', '_')}.py"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return file, next((n for n, text in enumerate(lines, 1) if f'"{claim.id}"' in text), None)
