"""A chapter of the report: a question, the figures and topics that answer it, and an answer computed from results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hessianlab.claims.ledger import Ledger
from hessianlab.growth.exponents import ExponentFit
from hessianlab.presentations import growth_of
from hessianlab.report.quotation import Kind, QuotedClaim
from hessianlab.results import Result

Results: TypeAlias = Mapping[str, Result]
"""The results of a run by the name of their experiment."""


@dataclass(frozen=True)
class Number:
    """A number behind an answer: what it is, as measured, as predicted by theory, as published."""

    what: str
    measured: str
    predicted: str = ""
    published: str = ""


@dataclass(frozen=True)
class Answer:
    """What a run says to the question of a chapter.

    Attributes:
        kind: Its colour.
        verdict: In a few words, such as "yes" or "only if layers are chained without skips".
        sentence: One plain sentence.
        numbers: What it rests on.
    """

    kind: Kind
    verdict: str
    sentence: str
    numbers: tuple[Number, ...] = ()


@dataclass(frozen=True)
class Chapter:
    """A step of the argument.

    Attributes:
        slug: The address of the chapter on the page.
        title: Two or three words for lists.
        question: What is asked, in words that need no explanation.
        introduction: What a reader must know before the figures; no numbers, since nothing here is measured.
        figures: Experiments shown, in this order, as far as the run has them.
        topics: First words of the topics of claims that belong here and name no figure.
        answer: Computed from the run; None if the run lacks what it needs.
        quoted: Claims that the answer rests on, with the verdict that each kind of answer implies. No sentence of a
            chapter names a claim in words: the page shows these, with the verdict of the ledger.
    """

    slug: str
    title: str
    question: str
    introduction: str
    figures: tuple[str, ...]
    topics: tuple[str, ...]
    answer: Callable[[Results, Ledger | None], Answer | None]
    quoted: tuple[QuotedClaim, ...] = ()


def fits_of(results: Results, *names: str) -> list[ExponentFit]:
    """Every fitted exponent of those of the named growth figures that the run has."""
    found: list[ExponentFit] = []
    for name in names:
        growth = growth_of(results[name]) if name in results else None
        if growth is not None:
            found += growth.exponents(results[name])
    return found


def top_layer(fits: Iterable[ExponentFit]) -> dict[tuple[str, str], ExponentFit]:
    """The fits of the top layer in the first range of each series, by block and part; of one depth and grid."""
    found: dict[tuple[str, str], ExponentFit] = {}
    for fit in fits:
        if fit.series.last and fit.series.grid == 0:
            found.setdefault((fit.series.block, fit.series.part), fit)
    return found


def agreeing(fits: Iterable[ExponentFit], paper: bool = False) -> tuple[int, int]:
    """How many fits agree with the prediction (or with the paper), of those that decide."""
    decided = [fit.paper_agrees if paper else fit.agrees for fit in fits]
    answers = [agrees for agrees in decided if agrees is not None]
    return sum(answers), len(answers)


def exponent_number(fit: ExponentFit, what: str) -> Number:
    """Measured with its interval, counted, and as the paper has it."""
    return Number(
        what,
        f"{fit.power} ({fit.interval})" if fit.interval else fit.power,
        "" if fit.predicted is None else str(fit.predicted),
        "" if fit.paper is None else str(fit.paper),
    )
