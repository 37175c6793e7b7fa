"""The argument of the report: its chapters in order, the last one on training, and where figures and claims belong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hessianlab.claims.definition import Claim
from hessianlab.claims.ledger import Ledger
from hessianlab.claims.trained import Effect, StudyRecord
from hessianlab.experiments.registry import STUDY
from hessianlab.experiments.statistics import rank_correlation
from hessianlab.report.attention import MOMENTS, QUERY_KEY, SOFTMAX, WEIGHTS
from hessianlab.report.chapter import Answer, Chapter, Number, Results
from hessianlab.report.network import BLOCKS, DATA, DEPTH, NORM
from hessianlab.report.quotation import counted_verdicts, named_only
from hessianlab.wording import MINUS, several
from hessianlens.sizes import number_of

TRAINING_PREFIX = STUDY
"""Experiments that train have names that begin so."""

TOPIC = "training"
"""Of the claims about trained models."""

ANSWERING, _TASK = "study_optimisers", "characters"
"""The study that answers the question, and the task nearest to a language model."""

INTERVENING = "study_block_rates"
"""The study that changes what is said to be the cause: learning rates that even out the curvature of the blocks."""

_NORMS = {"no norm": "without a norm", "pre-norm": "with layer norm in front"}
"""As the study calls them, and in a sentence."""

_KINDS = ("softmax", "linear", "sigmoid")


def answer_training(_results: Results, ledger: Ledger | None) -> Answer | None:
    """From two recorded studies: does Adam's advantage go with blocks of different scale, does evening them out help?

    A correlation over few settings shows no cause, and has a wide interval; so the answer is yes only if the interval
    lies above zero and rates by curvature bring SGD nearer to Adam, and no only if neither is so and the data decide.
    """
    asked = [entry for entry in ledger or () if entry.claim.topic == TOPIC]
    found = StudyRecord(ANSWERING)
    gaps = optimiser_gaps(found)
    related = rank_correlation_interval(found)
    if not asked or related is None or any(effect.mean is None for effect in gaps.values()):
        return None
    intervention = StudyRecord(INTERVENING)
    changed = intervention.effect(
        f"{_TASK}: loss, SGD, rates by curvature minus SGD",
        "loss of SGD, rates by curvature minus equal rates",
        most=0.0,
    )
    softmax, linear, sigmoid = (_both([gaps[kind, norm] for norm in _NORMS]) for kind in _KINDS)
    sentence = (
        f"In the study of optimisers ({found.models}) the loss of SGD minus that of Adam is {softmax} nats with "
        f"softmax (without a norm, and with layer norm in front), {linear} with linear attention and {sigmoid} with "
        "sigmoid. "
        f"{_related(related)} {_intervened(changed, intervention)}{_claims(asked)}"
    )
    numbers = (
        *(Number(effect.what, _typeset(effect.shown)) for effect in gaps.values()),
        *(
            Number(f"rank correlation of gap and block ratio, {one.where(_TASK)}", _typeset(own.shown))
            for one in found.conditions()
            if (own := rank_correlation_interval(one)) is not None
        ),
        *([Number(changed.what, _typeset(changed.shown))] if changed.mean is not None else []),
    )
    helps = any(gaps["softmax", norm].state for norm in _NORMS)
    if not helps or (related.state is False and changed.state is False):
        return Answer("no", "no, not in the small models trained here", sentence, numbers)
    if related.state and changed.state:
        return Answer("yes", "yes, in the small models trained here", sentence, numbers)
    return Answer("open", f"not shown: {_missing(related, changed)}", sentence, numbers)


def optimiser_gaps(found: StudyRecord) -> dict[tuple[str, str], Effect]:
    """The loss of SGD minus that of Adam by activation and norm."""
    return {(kind, norm): _gap(found, kind, norm) for kind in _KINDS for norm in _NORMS}


def _gap(found: StudyRecord, kind: str, norm: str) -> Effect:
    """The loss of SGD minus that of Adam."""
    name = f"{_TASK}: loss, {kind}, {norm}, SGD minus {kind}, {norm}, Adam"
    return found.effect(name, f"loss of SGD minus that of Adam, {kind}, {norm}", least=0.0)


def rank_correlation_interval(found: StudyRecord) -> Effect | None:
    """Spearman's correlation over settings of Adam's advantage with the largest over the smallest block curvature.

    None for fewer than four settings.
    """
    points = [
        (found.mean(f"{_TASK}: log block spread, {kind}, {norm}"), _gap(found, kind, norm).mean)
        for kind in _KINDS
        for norm in _NORMS
    ]
    kept = [(x, y) for x, y in points if y is not None and not math.isnan(x)]
    if len(kept) < 4:
        return None
    found_interval = rank_correlation([x for x, _ in kept], [y for _, y in kept])
    return Effect("rank correlation of gap and block ratio", *found_interval, len(kept), math.nan, least=0.0)


def _related(found: Effect) -> str:
    says = {
        True: "so the gap is larger where blocks are less alike",
        False: "so the gap is smaller where blocks are less alike",
        None: "which does not decide whether the two go together",
    }[found.state]
    return _typeset(
        f"Over {found.seeds} settings this gap and the ratio of the largest to the smallest block curvature have the "
        f"rank correlation {found.mean:.2f} (95 % interval {found.low:.2f} to {found.high:.2f}), {says}."
    )


def _intervened(changed: Effect, study: StudyRecord) -> str:
    if changed.mean is None:
        return "No intervention on the curvature of the blocks is recorded."
    says = {
        True: "SGD comes nearer to Adam",
        False: "SGD ends worse, and none of its gap to Adam is closed",
        None: "no change was found",
    }[changed.state]
    return (
        f"The one intervention, a learning rate per block set by its measured curvature ({study.models}), changes the "
        f"loss of SGD by {_typeset(changed.shown)} nats: {says}."
    )


_OBSERVED = {
    True: "the gap goes with the block ratio",
    False: "the gap goes against the block ratio",
    None: "the correlation does not decide",
}
_TRIED = {
    True: "rates by curvature help SGD",
    False: "rates by curvature make SGD worse",
    None: "rates by curvature change nothing that was found",
}


def _missing(related: Effect, changed: Effect) -> str:
    return f"{_OBSERVED[related.state]}, and {_TRIED[changed.state]}"


def _claims(asked: Sequence[object]) -> str:
    verdicts = [getattr(entry, "verdict", None) for entry in asked]
    return f" Of {number_of(len(verdicts), 'claim')} about trained models {counted_verdicts(verdicts)}."


def _both(effects: Sequence[Effect]) -> str:
    return several([_typeset(f"{effect.mean:.2g}") for effect in effects])


def _typeset(number: str) -> str:
    return number.replace("-", MINUS)


TRAINING = Chapter(
    slug="training",
    title="For training",
    question="Do these differences explain how Transformers train?",
    introduction="If blocks are curved so differently, an optimiser that scales every weight by itself, such as Adam, "
    "should have an advantage over plain gradient descent (SGD), and a larger one where blocks differ in scale than "
    "where they are alike. That is a statement about runs, not about a point in the landscape; so small models were "
    "trained, and what came out is recorded with the project.",
    figures=(),
    topics=("training", "step sizes", "trained model"),
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
