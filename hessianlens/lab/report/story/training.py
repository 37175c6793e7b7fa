"""What follows for training: claims about it, and what runs say where there are some."""

from __future__ import annotations

from hessianlens.lab.claims.finding import Verdict
from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.experiments.registry import STUDY
from hessianlens.lab.report.story.chapter import Answer, Chapter, Results
from hessianlens.lab.telling import findings_of
from hessianlens.lab.wording import count

PREFIX = STUDY
"""Experiments that train have names that begin so."""

TOPIC = "training"
"""Of the claims about trained models."""


def answer(results: Results, ledger: Ledger | None) -> Answer | None:
    """The first finding of runs that trained; without any, what recorded studies decide of the claims."""
    trained = [result for name, result in results.items() if name.startswith(PREFIX)]
    told = [sentence for result in trained for sentence in findings_of(result).sentences(result)[:1]]
    if told:
        return Answer("open", "measured", told[0])
    asked = [entry for entry in ledger or () if entry.claim.topic == TOPIC]
    if not asked:
        return None
    waiting = sum(entry.verdict is Verdict.NEEDS_TRAINING for entry in asked)
    failed = sum(entry.verdict is Verdict.FAILS for entry in asked)
    held = len(asked) - waiting - failed
    return Answer(
        "open",
        "measured" if waiting < len(asked) else "open",
        f"Of {count(len(asked), 'claim')} about optimisers and trained models, recorded studies of small models bear "
        f"out {held}, contradict {failed} and leave {waiting} open.",
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
