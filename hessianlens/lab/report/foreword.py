"""The first screen: three sentences from the results, and how large the run was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.claims.summary import computed
from hessianlens.lab.report.story import Answer, Chapter
from hessianlens.lab.wording import count

SURPRISES = ("A10", "A13", "B20", "B9", "A24", "P29", "A30", "C10")
"""Ranked by hand: what a reader of the documents would least expect."""


@dataclass(frozen=True)
class Opening:
    """A word and a sentence each: what held, what ended where, what is new."""

    held: str
    ended: str
    new: str


def opening(
    answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None, exponents: tuple[int, int]
) -> Opening:
    """Three sentences; one for which the run has nothing is empty.

    Args:
        answers: Of every chapter.
        ledger: The tested claims.
        exponents: How many agree with the prediction, of how many that decide.
    """
    new = next((answer.sentence for chapter, answer in answers if chapter.slug == "softmax" and answer), "")
    return Opening(_held(ledger, exponents), _ended(answers, ledger), new)


def _held(ledger: Ledger | None, exponents: tuple[int, int]) -> str:
    told = []
    if exponents[1]:
        told.append(f"{exponents[0]} of {exponents[1]} predicted powers of growth were found as predicted")
    if ledger:
        found = computed(ledger)
        holding = sum(entry.verdict is Verdict.HOLDS for entry in found)
        told.append(f"{holding} of {len(found)} claims that were computed hold as written")
    return f"{_capital(', and '.join(told))}." if told else ""


def _ended(answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None) -> str:
    limited = [
        f"{chapter.title.lower()}: {answer.verdict}" for chapter, answer in answers if answer and answer.kind == "if"
    ]
    told = []
    if ledger:
        conditional, failing = (
            sum(entry.verdict is verdict for entry in computed(ledger)) for verdict in (Verdict.HOLDS_IF, Verdict.FAILS)
        )
        verbs = ("holds" if conditional == 1 else "hold", "fails" if failing == 1 else "fail")
        told.append(f"{count(conditional, 'claim')} {verbs[0]} only under a condition and {failing} {verbs[1]}")
    if limited:
        told.append(f"among the questions below, {'; '.join(limited)}")
    return f"{_capital('; '.join(told))}." if told else ""


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]
