"""What a chapter is: a question, the figures that answer it, and an answer computed from their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hessianlab.claims.ledger import Ledger
from hessianlab.results import Result

Results: TypeAlias = Mapping[str, Result]
"""The results of a run by the name of their experiment."""

Kind: TypeAlias = Literal["yes", "no", "if", "open"]
"""Which of the four colours a verdict has."""


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
    """

    slug: str
    title: str
    question: str
    introduction: str
    figures: tuple[str, ...]
    topics: tuple[str, ...]
    answer: Callable[[Results, Ledger | None], Answer | None]
