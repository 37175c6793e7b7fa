"""What follows for training: claims about it, and what runs say where there are some."""

from __future__ import annotations

from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.report.story.chapter import Answer, Chapter, Results
from hessianlens.lab.telling import findings_of
from hessianlens.lab.wording import count

PREFIX = "training"
"""Experiments that train have names that begin so."""


def answer(results: Results, ledger: Ledger | None) -> Answer | None:
    """The first finding of runs that trained; without any, that it is open, and how many claims wait for it."""
    trained = [result for name, result in results.items() if name.startswith(PREFIX)]
    told = [sentence for result in trained for sentence in findings_of(result).sentences(result)[:1]]
    if told:
        return Answer("open", "measured", told[0])
    waiting = [entry for entry in ledger or () if entry.verdict is Verdict.NEEDS_TRAINING]
    if not waiting:
        return None
    return Answer(
        "open",
        "open",
        f"{count(len(waiting), 'claim')} about optimisers and trained models can only be settled by training; this run "
        "measured curvature at points and gives them no verdict.",
    )


CHAPTER = Chapter(
    slug="training",
    title="For training",
    question="Do these differences explain how Transformers train?",
    introduction="If blocks are curved so differently, an optimiser that scales every weight by itself, such as Adam, "
    "should have an advantage over plain gradient descent. That is a statement about runs, not about a point in the "
    "landscape.",
    figures=(),
    topics=("training",),
    answer=answer,
)
