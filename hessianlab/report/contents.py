"""What both pages are made of: results by name, the ledger, every exponent, and the answer of every chapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.figures.presentation.activation_scales import RatioCurve, ratio_curves
from hessianlab.report.argument import CHAPTERS
from hessianlab.report.chapter import Answer, Chapter, Results
from hessianlab.report.exponents import ExponentRow, exponent_rows
from hessianlab.results import Result


@dataclass(frozen=True)
class Contents:
    """A run as the pages read it.

    Attributes:
        results: By the name of their experiment.
        ledger: The tested claims, if there are any.
        exponents: Every exponent that something was predicted for.
        answers: Every chapter of the argument with its answer, if the run has what it needs.
    """

    results: Results
    ledger: Ledger | None
    exponents: tuple[ExponentRow, ...]
    answers: tuple[tuple[Chapter, Answer | None], ...]

    def answer(self, slug: str) -> Answer | None:
        """Of a chapter by its address."""
        return next((answer for chapter, answer in self.answers if chapter.slug == slug), None)

    def verdict(self, claim: str) -> Verdict | None:
        """Of a claim by its id; None if it was not tested."""
        return next((entry.verdict for entry in self.ledger or () if entry.claim.id == claim), None)

    def verdicts(self, document: str) -> list[Verdict | None]:
        """Of the claims of a document by its letter."""
        return [entry.verdict for entry in self.ledger or () if entry.claim.document == document]

    def ratio_curves(self) -> dict[str, RatioCurve]:
        """Value over query against the scale of the embeddings, by activation; empty without such a result."""
        result = self.results.get("activation_scales")
        return ratio_curves(result) if result else {}


def contents_of(results: Sequence[Result], ledger: Ledger | None) -> Contents:
    """What the pages are made of."""
    found = {result.experiment: result for result in results}
    answers = tuple((chapter, chapter.answer(found, ledger)) for chapter in CHAPTERS)
    return Contents(found, ledger, tuple(exponent_rows(results)), answers)
