"""The chapters in the order of the argument, and which of them a figure or a claim belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from hessianlab.claims.definition import Claim
from hessianlab.claims.finding import Verdict
from hessianlab.report.story import training
from hessianlab.report.story.attention import MOMENTS, QUERY_KEY, SOFTMAX, WEIGHTS
from hessianlab.report.story.chapter import Chapter
from hessianlab.report.story.network import BLOCKS, DATA, DEPTH, NORM

CHAPTERS: tuple[Chapter, ...] = (
    BLOCKS,
    DATA,
    MOMENTS,
    WEIGHTS,
    SOFTMAX,
    DEPTH,
    NORM,
    QUERY_KEY,
    training.CHAPTER,
)

OTHERS = "others"
"""Address of the figures that no chapter names."""


def chapter_of_figure(name: str) -> Chapter | None:
    """The chapter that shows an experiment; None for one that no chapter names.

    >>> chapter_of_figure("fig3a").slug
    'data'
    """
    if name.startswith(training.PREFIX):
        return training.CHAPTER
    return next((chapter for chapter in CHAPTERS if name in chapter.figures), None)


def chapter_of_claim(claim: Claim) -> Chapter:
    """The chapter a claim belongs to: by its verdict if it waits for training, else its figure's, else its topic's.

    >>> from hessianlab.claims.catalogue import find
    >>> [chapter_of_claim(claim).slug for claim in find(["P25", "A12", "C19", "P41"])]
    ['data', 'softmax', 'training', 'weights']
    """
    if claim.unmeasured is Verdict.NEEDS_TRAINING:
        return training.CHAPTER
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
