"""How different blocks are, pair by pair; ratios of their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_choice, check_that, expect
from hessianlens.spectra.estimate import Estimate, with_interval
from hessianlens.spectra.quotients import PowerProduct

_SHOWN = 8
"""Blocks up to which the whole table is printed."""


@dataclass(frozen=True, eq=False)
class Heterogeneity:
    """A score for every pair of blocks.

    Attributes:
        names: The blocks.
        score: "js", or what the ratios are of.
        pairwise: The score of block i (row) against block j (column).
        stderr: Its standard errors.
        mean: "js": the mean over all pairs; ratios: the geometric mean over all pairs of the larger over the smaller.
        sizes: What the ratios are of, a size a block; none for "js".
    """

    names: tuple[str, ...]
    score: str
    pairwise: Float[Tensor, "b b"]
    stderr: Float[Tensor, "b b"]
    mean: Estimate
    sizes: tuple[Estimate, ...] = ()

    def __getitem__(self, pair: tuple[str, str]) -> Estimate:
        check_that(isinstance(pair, tuple) and len(pair) == 2, "pair", pair, "the names of two blocks")
        for name in pair:
            check_choice("block", name, self.names)
        i, j = (self.names.index(name) for name in pair)
        mean, value = self.mean, float(self.pairwise[i, j])
        if i == j:
            return Estimate.exactly(value)
        if self.sizes:
            return PowerProduct.of(value, [(self.sizes[i], 1), (self.sizes[j], -1)])
        return Estimate(value, float(self.stderr[i, j]), mean.probes, mean.seed, mean.method)

    def __str__(self) -> str:
        head = f"{self.score} between {len(self.names)} blocks: mean {self.mean}"
        if len(self.names) > _SHOWN:
            return f"{head}\n{self._extremes()}"
        cells = [["", *self.names]]
        for row in self.names:
            found = (self[row, column] for column in self.names)
            shown = (with_interval(e.value, *e.interval()) if e.stderr else f"{e.value:.4g}" for e in found)
            cells.append([row, *shown])
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells))]
        lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join([head, *lines])

    __repr__ = __str__

    def _extremes(self) -> str:
        """The most different pairs."""
        b = len(self.names)
        pairs = sorted(((float(self.pairwise[i, j]), i, j) for i in range(b) for j in range(b) if i != j), reverse=True)
        return "\n".join(f"{self.names[i]} and {self.names[j]}: {value:.4g}" for value, i, j in pairs[:_SHOWN])


def ratio_heterogeneity(sizes: Mapping[str, Estimate], score: str = "norm") -> Heterogeneity:
    """Ratios ``s_i / s_j`` of a size of the blocks: their norms, traces or median entries.

    The mean is ``exp mean_{i<j} |log |s_i / s_j||``: how many times larger the larger block of a pair is, typically;
    1 for equal blocks, infinite if some but not all are zero. Blocks are taken as independent: standard errors are
    carried through the first derivatives, intervals on the scale of logarithms (`PowerProduct`).

    Args:
        sizes: Name -> `Estimate`.
        score: What the sizes are.

    >>> print(ratio_heterogeneity({"q": Estimate.exactly(1.0), "v": Estimate.exactly(100.0)}))
    norm between 2 blocks: mean 100 (exact)
         q     v
    q    1  0.01
    v  100     1
    """
    expect_blocks(sizes)
    values = torch.tensor([s.value for s in sizes.values()], dtype=torch.float64)
    relative = torch.tensor([s.stderr for s in sizes.values()], dtype=torch.float64) / values.abs()
    relative = torch.where(values == 0, 0, relative)
    ratios = values[:, None] / values
    ratios = torch.where(values[:, None] == values, 1.0, ratios)
    spread = (relative[:, None].square() + relative.square()).sqrt()
    errors = torch.where(spread > 0, ratios.abs() * spread, 0)
    logs = ratios.abs().log()
    upper = torch.ones_like(ratios).triu(1).bool()
    mean = float(logs[upper].abs().mean().exp())
    slopes = logs.sign().sum(1) / int(upper.sum())
    summary = PowerProduct.of(mean, list(zip(sizes.values(), slopes.tolist(), strict=True)))
    return Heterogeneity(tuple(sizes), score, ratios, errors.fill_diagonal_(0), summary, tuple(sizes.values()))


def expect_blocks(blocks: Mapping[str, object]) -> None:
    """Two blocks or more."""
    expect(len(blocks) >= 2, f"blocks: got {len(blocks)}, expected at least two to compare.")
