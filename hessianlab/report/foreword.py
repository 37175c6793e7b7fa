"""The first screen: three sentences from the results, and how large the run was."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.report.exponents import ExponentRow, by_counting, by_the_paper, why_they_differ
from hessianlab.report.story import Answer, Chapter
from hessianlab.wording import count

SURPRISES = ("A10", "A13", "B20", "B9", "A24", "P29", "A30", "C10")
"""Ranked by hand: what a reader of the documents would least expect."""


@dataclass(frozen=True)
class Opening:
    """What held, what ended where, what is new; and why the numbers that held are two."""

    held: str
    why: str
    ended: str
    new: str


def opening(
    answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None, exponents: Sequence[ExponentRow]
) -> Opening:
    """Three sentences; one for which the run has nothing is empty.

    Args:
        answers: Of every chapter.
        ledger: The tested claims.
        exponents: Every exponent that something was predicted for.
    """
    new = next((_answered(*found) for found in answers if found[0].slug == "softmax"), "")
    return Opening(_held(ledger, exponents), why_they_differ(exponents), _ended(answers, ledger), new)


def _held(ledger: Ledger | None, exponents: Sequence[ExponentRow]) -> str:
    told = []
    ours, theirs = by_counting(exponents), by_the_paper(exponents)
    if ours.decided:
        told.append(
            "Multiply the data by a small number and every block shrinks as a power of it. Of these powers "
            f"{ours.agree} of {ours.decided} that counting factors predicts were found"
        )
    if theirs.decided:
        told.append(f"{theirs.agree} of {theirs.decided} that the paper draws or states" + ("" if told else " agree"))
    claims = ""
    if ledger:
        holding = sum(entry.verdict is Verdict.HOLDS for entry in ledger)
        claims = f"{holding} of {len(ledger)} claims hold as written."
    growth = f"{', and '.join(told)}." if told else ""
    return " ".join(filter(None, (growth, claims)))


def _ended(answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None) -> str:
    limited, undecided = (
        [f"{chapter.title.lower()} ({_brief(answer)})" for chapter, answer in answers if answer and answer.kind == kind]
        for kind in ("if", "open")
    )
    told = []
    if ledger:
        of = Counter(entry.verdict for entry in ledger)
        conditional, failing = of[Verdict.HOLDS_IF], of[Verdict.FAILS]
        verbs = ("holds" if conditional == 1 else "hold", "fails" if failing == 1 else "fail")
        told.append(f"{count(conditional, 'claim')} {verbs[0]} only under a condition and {failing} {verbs[1]}.")
    if limited:
        begins = "comes" if len(limited) == 1 else "come"
        told.append(f"{count(len(limited), 'answer')} below {begins} with a condition: {'; '.join(limited)}.")
    if undecided:
        told.append(f"Left open: {'; '.join(undecided)}.")
    return " ".join(told)


def _answered(chapter: Chapter, answer: Answer | None) -> str:
    """A question with its answer."""
    if answer is None:
        return ""
    return f"{chapter.question} {answer.verdict[:1].upper()}{answer.verdict[1:]}. {answer.sentence}"


def _brief(answer: Answer) -> str:
    """A verdict without what it explains in brackets."""
    return re.sub(r" \([^)]*\)", "", answer.verdict)
