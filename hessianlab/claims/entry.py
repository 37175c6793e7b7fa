"""One line of the ledger: a claim, what its test found, how long that took and where it stands."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessianlab.claims.definition import Claim
from hessianlab.claims.finding import Finding, Verdict

_FOLDER = Path(__file__).parent

_SENTENCE_END = re.compile(r"(?<=[.])(?<!\bal[.])(?<!\bEq[.])(?<!\be[.]g[.])\s+")
"""Between a sentence and the next; an abbreviation ends none."""


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
    def correction(self) -> str:
        """What is true instead, with its numbers; of a claim without a test as its text has it."""
        return self.finding.correction if self.finding else self.claim.correction

    @property
    def reason(self) -> str:
        """Why it has no test, or why what was measured does not decide it."""
        return self.claim.reason or (self.finding.undecided if self.finding else "")

    @property
    def gist(self) -> str:
        """The first sentence of the correction, or of the reason for having no test."""
        return _SENTENCE_END.split(self.correction or self.reason, maxsplit=1)[0]

    @property
    def location(self) -> str:
        """File and line of the test, or of the text of a claim without one, as ``hessianlens/.../topic.py:12``."""
        stem = self.claim.topic.replace(" ", "_")
        if self.claim.test is not None:
            return _place(_FOLDER / "topics" / f"{stem}.py", f'@claim("{self.claim.id}")')
        return _place(_FOLDER / "texts" / f"{stem}.ini", f"[{self.claim.id}]")

    @property
    def figures(self) -> tuple[str, ...]:
        """Every check as one line; one that serves twice is told once."""
        if self.finding is None:
            return ()
        checks = (*self.finding.checks, *self.finding.conditional, *self.finding.support)
        return tuple(dict.fromkeys(map(str, checks)))

    def to_dict(self) -> dict[str, Any]:
        """Everything a machine may want, as JSON values."""
        claim, finding = self.claim, self.finding
        told: dict[str, Any] = {
            "id": claim.id,
            "document": claim.document,
            "topic": claim.topic,
            "chapter": claim.chapter or None,
            "central": claim.central,
            "source": claim.source,
            "statement": claim.statement,
            "method": claim.method,
            "verdict": str(self.verdict) if self.verdict else None,
            "reason": self.reason,
            "correction": self.correction,
            "gist": self.gist,
            "error": self.error,
            "seconds": round(self.seconds, 3),
            "location": self.location,
        }
        if finding is None:
            return told
        parts = {
            name: [vars(check) for check in getattr(finding, name)] for name in ("checks", "conditional", "support")
        }
        words = {name: getattr(finding, name) for name in ("condition", "example", "confirmed")}
        return {**told, **parts, **words, "curves": finding.curves and dataclasses.asdict(finding.curves)}


def _place(file: Path, wanted: str) -> str:
    shown = (Path("hessianlab/claims") / file.relative_to(_FOLDER)).as_posix()
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    line = next((number for number, text in enumerate(lines, 1) if text == wanted), None)
    return f"{shown}:{line}" if line else shown
