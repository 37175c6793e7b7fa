"""The argument of the report: its chapters in order, the last one on training, and where figures and claims belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hessianlab.claims.definition import Claim
from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.claims.trained import Effect, StudyRecord
from hessianlab.experiments.registry import STUDY
from hessianlab.report.attention import MOMENTS, QUERY_KEY, SOFTMAX, WEIGHTS
from hessianlab.report.chapter import Answer, Chapter, Number, Results
from hessianlab.report.network import BLOCKS, DATA, DEPTH, NORM
from hessianlab.report.quotation import named_only
from hessianlab.wording import MINUS, several

TRAINING_PREFIX = STUDY
"""Experiments that train have names that begin so."""

TOPIC = "training"
"""Of the claims about trained models."""

ANSWERING, _TASK = "study_optimisers", "characters"
"""The study that answers the question, and the task nearest to a language model."""

_NORMS = {"no norm": "without a norm", "pre-norm": "with layer norm in front"}
"""As the study calls them, and in a sentence."""


def answer_training(_results: Results, ledger: Ledger | None) -> Answer | None:
    """From the recorded study of optimisers: Adam's advantage with softmax, and with linear attention, which lacks it.

    If unlike blocks were why Adam helps, it would help more with softmax, whose blocks are unlike, than with linear
    attention, whose blocks are alike.
    """
    asked = [entry for entry in ledger or () if entry.claim.topic == TOPIC]
    found = StudyRecord(ANSWERING)
    gains = {kind: [_gain(found, kind, norm) for norm in _NORMS] for kind in ("softmax", "linear", "sigmoid")}
    more = [
        found.effect(
            f"{_TASK}: loss, gap of softmax minus gap of linear, {norm}",
            f"gap of softmax minus that of linear, {norm}",
            least=0.0,
        )
        for norm in _NORMS
    ]
    if not asked or any(effect.mean is None for effect in (*(e for own in gains.values() for e in own), *more)):
        return None
    helps = [norm for norm, effect in zip(_NORMS, gains["softmax"], strict=True) if effect.state]
    larger = [norm for norm, effect in zip(_NORMS, more, strict=True) if effect.state]
    smaller = [norm for norm, effect in zip(_NORMS, more, strict=True) if effect.state is False]
    numbers = tuple(
        Number(effect.what, _typeset(effect.shown)) for effect in (*(e for own in gains.values() for e in own), *more)
    )
    sentence = (
        f"In the study of optimisers ({found.models}) SGD ends above Adam by {_both(gains['softmax'])} nats with "
        f"softmax (without a norm, and with layer norm in front), by {_both(gains['linear'])} with linear attention, "
        f"whose query and value blocks are alike, and by {_both(gains['sigmoid'])} with sigmoid, whose blocks are more "
        f"unlike. With softmax, against linear attention, {_compared(larger, smaller)}.{_claims(asked)}"
    )
    if helps and len(larger) == len(_NORMS):
        return Answer("yes", "yes, in the small models trained here", sentence, numbers)
    if not helps or len(smaller) == len(_NORMS):
        return Answer("no", "no, not in the small models trained here", sentence, numbers)
    if larger:
        return Answer("if", f"only {_norms(larger)}, in the small models trained here", sentence, numbers)
    return Answer("open", "not shown: Adam helps, but not measurably more where blocks are unlike", sentence, numbers)


def _gain(found: StudyRecord, kind: str, norm: str) -> Effect:
    """The loss of SGD minus that of Adam."""
    name = f"{_TASK}: loss, {kind}, {norm}, SGD minus {kind}, {norm}, Adam"
    return found.effect(name, f"loss of SGD minus that of Adam, {kind}, {norm}", least=0.0)


def _compared(larger: Sequence[str], smaller: Sequence[str]) -> str:
    if len(larger) == len(_NORMS):
        return "the gap is larger, as the argument says"
    if len(smaller) == len(_NORMS):
        return "the gap is smaller, against the argument"
    if larger or smaller:
        changes = [f"larger {_norms(larger)}"] if larger else []
        changes += [f"smaller {_norms(smaller)}"] if smaller else []
        return f"the gap is {' and '.join(changes)}"
    return "a larger gap, as the argument has it, cannot be told from chance"


def _norms(names: Sequence[str]) -> str:
    return several([_NORMS[name] for name in names])


def _claims(asked: Sequence[object]) -> str:
    verdicts = [getattr(entry, "verdict", None) for entry in asked]
    words = [
        f"{verdicts.count(verdict)} {text}"
        for verdict, text in (
            (Verdict.HOLDS, "hold"),
            (Verdict.HOLDS_IF, "hold under conditions that were found"),
            (Verdict.FAILS, "fail"),
            (Verdict.NOT_SEEN, "are not seen in models of this size"),
            (Verdict.OPEN, "are open"),
        )
        if verdict in verdicts
    ]
    return f" Of {len(verdicts)} claims about trained models {several(words)}."


def _both(effects: Sequence[Effect]) -> str:
    return several([_typeset(f"{effect.mean:.2g}") for effect in effects])


def _typeset(number: str) -> str:
    return number.replace("-", MINUS)


TRAINING = Chapter(
    slug="training",
    title="For training",
    question="Do these differences explain how Transformers train?",
    introduction="If blocks are curved so differently, an optimiser that scales every weight by itself, such as Adam, "
    "should have an advantage over plain gradient descent (SGD), and a larger one where blocks are unlike than where "
    "they are alike. That is a statement about runs, not about a point in the landscape; so small models were trained, "
    "and what came out is recorded with the project.",
    figures=(),
    topics=("training", "step sizes"),
    answer=answer_training,
    quoted=named_only("A26", "A27", "A35"),
)


CHAPTERS: tuple[Chapter, ...] = (
    BLOCKS,
    DATA,
    MOMENTS,
    WEIGHTS,
    SOFTMAX,
    DEPTH,
    NORM,
    QUERY_KEY,
    TRAINING,
)

OTHERS = "others"
"""Address of the figures that no chapter names."""


def chapter_of_figure(name: str) -> Chapter | None:
    """The chapter that shows an experiment; None for one that no chapter names.

    >>> chapter_of_figure("fig3a").slug
    'data'
    """
    if name.startswith(TRAINING_PREFIX):
        return TRAINING
    return next((chapter for chapter in CHAPTERS if name in chapter.figures), None)


def chapter_of_claim(claim: Claim) -> Chapter:
    """The chapter a claim belongs to: its figure's, or its topic's.

    >>> from hessianlab.claims.catalogue import find
    >>> [chapter_of_claim(claim).slug for claim in find(["P25", "A12", "C19", "P41"])]
    ['data', 'softmax', 'training', 'weights']
    """
    shown = chapter_of_figure(claim.chapter) if claim.chapter and claim.topic != "growth exponents" else None
    return shown or _by_topic(claim.topic)


def _by_topic(topic: str) -> Chapter:
    """The one with the longest beginning of the topic's name."""
    named = [(len(start), chapter) for chapter in CHAPTERS for start in chapter.topics if topic.startswith(start)]
    return max(named, key=lambda found: found[0])[1]


def figures_of(chapter: Chapter, names: Iterable[str]) -> list[str]:
    """Those of the named experiments that a chapter shows, in its order."""
    own = [name for name in names if chapter_of_figure(name) is chapter]
    place = {name: number for number, name in enumerate(chapter.figures)}
    return sorted(own, key=lambda name: place.get(name, len(place)))
