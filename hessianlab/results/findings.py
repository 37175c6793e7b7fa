"""What the numbers of a figure say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hessianlab.results.result import Result


@dataclass(frozen=True)
class Findings:
    """How a result is read; a family of figures that reads more from its results has a class of its own.

    Attributes:
        sentences: What was found, the most important first; every number in it comes from the result.
    """

    sentences: Callable[[Result], list[str]]
