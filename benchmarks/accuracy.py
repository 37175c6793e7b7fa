"""How good a Hutchinson estimate is, and how many probes a given accuracy takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.hutchinson import draw, kept_graph_batched
from benchmarks.problem import NAMES, Problem


@dataclass(frozen=True)
class Accuracy:
    """The error of estimated block norms, against the exact ones.

    Attributes:
        groups: Independent estimates that the errors are taken over.
        errors: Root-mean-square relative error of an estimate with as many probes as were timed, by block.
        probes_needed: Probes a column parameter for a given relative standard error, by pair of parameters.
        wanted: That relative standard error.
    """

    groups: int
    errors: dict[str, float]
    probes_needed: dict[str, float]
    wanted: float

    @property
    def worst_error(self) -> float:
        """The largest error of the nine blocks."""
        return max(self.errors.values())

    @property
    def median_error(self) -> float:
        """The median error of the nine blocks."""
        return sorted(self.errors.values())[len(self.errors) // 2]

    @property
    def probes(self) -> int:
        """Probes a column parameter that serve every block."""
        return math.ceil(max(self.probes_needed.values()))

    def error_with(self, probes: float) -> float:
        """Relative standard error, on the hardest block, with another number of probes."""
        return self.wanted * math.sqrt(max(self.probes_needed.values()) / probes)


def measure_accuracy(problem: Problem, exact: Tensor, probes: int, groups: int, wanted: float = 0.01) -> Accuracy:
    """Draw `groups` sets of probes of their own and compare with the exact norms ``[i, j]``."""
    drawn = [draw(problem, probes, seed=100 + k) for k in range(groups)]
    squares = torch.stack([kept_graph_batched(problem, vs) for vs in drawn])  # [group, probe, i, j]
    relative = squares.mean(1).sqrt() / exact - 1
    errors = relative.square().mean(0).sqrt()
    return Accuracy(groups, _by_block(errors), _probes_needed(squares.flatten(0, 1) / exact.square(), wanted), wanted)


def _by_block(matrix: Tensor) -> dict[str, float]:
    return {f"{r}{c}": float(matrix[i, j]) for i, r in enumerate(NAMES) for j, c in enumerate(NAMES)}


def _probes_needed(squares: Tensor, wanted: float) -> dict[str, float]:
    """Probes a column for ``std(norm) / norm = wanted``; a block and its transpose share their probes.

    The square root halves a relative error, and the mean of the two estimates of an off-diagonal block has half the
    mean of their variances: the estimator gets the credit for both.
    """
    variance = squares.var(0)
    needed = {}
    for i, row in enumerate(NAMES):
        for j, column in enumerate(NAMES[i:], start=i):
            both = variance[i, j] if i == j else (variance[i, j] + variance[j, i]) / 4
            needed[row + column] = float(both) / (2 * wanted) ** 2
    return needed
