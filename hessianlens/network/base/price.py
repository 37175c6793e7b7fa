"""What exact and sampled answers cost, in HVPs, and which of them is the cheaper one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from hessianlens.curvature import forward_multiply_adds
from hessianlens.network.base import thresholds
from hessianlens.network.base.question import Cost
from hessianlens.problems import Problem
from hessianlens.sizes import number_of


@dataclass(frozen=True)
class Prices:
    """What several answers cost together.

    Attributes:
        exact: HVPs that they take exactly.
        sampled: HVPs that they take from probes.
        answers: How many there are.
        at_least: Whether exact answers may take more.

    >>> print(Prices(257, 20, at_least=True))
    exact takes at least 257 HVPs, sampling 20
    """

    exact: float
    sampled: float
    answers: int = 1
    at_least: bool = False

    def __str__(self) -> str:
        blocks = f" for {self.answers} blocks" if self.answers > 1 else ""
        exact = f"{'at least ' if self.at_least else ''}{number_of(self.exact, 'HVP', '.0f')}"
        return f"exact takes {exact}{blocks}, sampling {self.sampled:.0f}"


def affordable_hvps(problem: Problem, sampled: float) -> float:
    """HVPs up to which exact answers are worth it: as many as probes would take, more where that is little work.

    Args:
        problem: From `hessianlens.problem`.
        sampled: HVPs of the sampled answers that they replace.
    """
    return max(sampled, little_hvps(problem))


def little_hvps(problem: Problem) -> float:
    """HVPs that are little work, whatever they are for.

    Args:
        problem: From `hessianlens.problem`.
    """
    one = thresholds.HVP_FORWARD_PASSES * forward_multiply_adds(problem)
    return thresholds.EXACT_SMALL_MULTIPLY_ADDS / max(one, 1.0)


def most_hvps(sampled: float) -> float:
    """HVPs beyond which exact answers are never worth it unless they are asked for."""
    return thresholds.EXACT_MAX_HVPS_PER_PROBE * sampled


def exact_hvps(costs: Sequence[Cost]) -> float:
    """HVPs that exact answers take together: what several of them share counts once.

    >>> layer = Cost("", upfront_hvps=24, shared="layer", certificate_hvps=1)
    >>> exact_hvps([layer, layer, Cost("", 8, 8)])
    34.0
    """
    shared: dict[Hashable, float] = {}
    alone = 0.0
    for cost in costs:
        if cost.shared is None:
            alone += cost.upfront_hvps
        else:
            shared[cost.shared] = max(shared.get(cost.shared, 0.0), cost.upfront_hvps)
    return alone + sum(shared.values()) + sum(cost.certificate_hvps for cost in costs)
