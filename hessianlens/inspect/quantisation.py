"""What rounding the weights of a block costs, from its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.errors import check_whole
from hessianlens.network.operators import hessian
from hessianlens.problems import Block, Problem
from hessianlens.spectra import Estimate, trace


@dataclass(frozen=True)
class RoundingCost:
    """The expected rise of the loss when a block is rounded to ``2^bits`` levels from its least to its largest weight.

    Rounding errors are taken as independent and uniform within a step, ``E d = 0``, ``E d d^T = step^2 / 12``; then
    ``E (d^T H d) / 2 = tr(H) step^2 / 24``. The gradient's part has mean zero.

    Attributes:
        block: The block.
        bits: Of a rounded weight.
        step: Distance between levels.
        trace: Trace of the block's Hessian.
    """

    block: str
    bits: int
    step: float
    trace: Estimate

    @property
    def rise(self) -> float:
        """``tr(H) step^2 / 24``; below zero where negative curvature prevails."""
        return self.trace.value * self.step**2 / 24

    def interval(self) -> tuple[float, float]:
        """At 95 %, from that of the trace."""
        low, high = self.trace.interval()
        return low * self.step**2 / 24, high * self.step**2 / 24


def rounding_costs(
    problem: Problem, blocks: Sequence[Block], bits: int, *, probes: int = 10, seed: int = 0
) -> dict[str, RoundingCost]:
    """By block, the largest cost first.

    Args:
        problem: From `hessianlens.problem`.
        blocks: The blocks to be rounded, each by itself.
        bits: Of a rounded weight.
        probes: Products for a trace that is not known exactly.
        seed: Their seed.
    """
    levels = 2 ** check_whole("bits", bits, 1, 32) - 1
    found = []
    for block in blocks:
        weights = block.take(problem.params[block.parameter])
        step = float(weights.max() - weights.min()) / levels
        found.append(RoundingCost(block.name, bits, step, trace(hessian(problem, block.name), probes, seed)))
    return {cost.block: cost for cost in sorted(found, key=lambda cost: -cost.rise)}
