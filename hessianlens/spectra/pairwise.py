"""How different blocks are, pair by pair; ratios of their sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.display import Cells, Grid, Listed, Picture
from hessianlens.errors import InputError, check_that, expect, meant, shown
from hessianlens.spectra.estimate import Estimate, with_interval
from hessianlens.spectra.intervals import squared_lengths
from hessianlens.spectra.quotients import PowerProduct

_SHOWN = 8
"""Blocks up to which the whole table is printed."""


@dataclass(frozen=True, repr=False)
class Divergence(Estimate):
    """A Jensen-Shannon divergence between spectra, or a mean of such.

    Where the spectra differ by their outliers it is proportional to what the probes see of these, and as skewed as
    squared lengths are: the interval is made for those, and held within 0 and log 2.
    """

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval at this level."""
        low, high = super().interval(level)
        if self.value > 0 and self.stderr > 0:
            least, most = squared_lengths(level, self.samples, self.stderr / self.value)
            low, high = min(low, self.value * least - self.bias), max(high, self.value * most + self.bias)
        return max(low, 0.0), min(high, math.log(2))


@dataclass(frozen=True, eq=False)
class Heterogeneity(Listed):
    """A score for every pair of blocks.

    Attributes:
        names: The blocks.
        score: "js", or what the ratios are of.
        pairwise: The score of block i (row) against block j (column).
        stderr: Its standard errors.
        mean: "js": the mean over all pairs; ratios: the geometric mean over all pairs of the larger over the smaller.
        sizes: What the ratios are of, a size a block; none for "js".
        bias: "js": what quadrature and the correction for noise may add to or take from a score; part of the intervals.
        sigma: "js": width of the smoothing at which the spectra were compared.
    """

    names: tuple[str, ...]
    score: str
    pairwise: Float[Tensor, "b b"]
    stderr: Float[Tensor, "b b"]
    mean: Estimate
    sizes: tuple[Estimate, ...] = ()
    bias: Float[Tensor, "b b"] | None = None
    sigma: float | None = None

    def __getitem__(self, pair: tuple[str, str]) -> Estimate:
        check_that(isinstance(pair, tuple) and len(pair) == 2, "pair", pair, "the names of two blocks")
        for name in pair:
            if name not in self.names:
                raise InputError(f"block: got {shown(name)}; {meant(name, self.names)}")
        i, j = (self.names.index(name) for name in pair)
        mean, value = self.mean, float(self.pairwise[i, j])
        if i == j:
            return Estimate.exactly(value)
        if self.sizes:
            return PowerProduct.of(value, [(self.sizes[i], 1), (self.sizes[j], -1)])
        bias = 0.0 if self.bias is None else float(self.bias[i, j])
        return Divergence(value, float(self.stderr[i, j]), mean.probes, mean.seed, mean.method, bias=bias)

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"row": r, "column": c, "score": self.score, **self[r, c].row()} for r in self.names for c in self.names
        ]

    def _picture(self, asked: bool) -> Picture:
        """The score of every pair."""
        kind = "divergence of the spectra, nats" if self.score == "js" else f"{self.score} of row over that of column"
        return Grid(self.names, self.names, self.pairwise.tolist(), kind, log=self.score != "js")

    def _heading(self) -> str:
        return f"{str(self).splitlines()[0]}, over all pairs"

    def _cells(self) -> Cells:
        """The most different pairs: the rest is in the picture."""
        pairs = sorted(self._apart(), reverse=True)[:_SHOWN]
        found = [[f"{self.names[i]}, {self.names[j]}", str(self[self.names[i], self.names[j]])] for _, i, j in pairs]
        return ["most different pairs", self.score], found

    def __str__(self) -> str:
        head = f"{self.score} between {len(self.names)} blocks: mean {self.mean}"
        if len(self.names) > _SHOWN:
            return f"{head}\n{self._extremes()}"
        cells = [["", *self.names]]
        for row in self.names:
            found = (self[row, column] for column in self.names)
            shown = (f"{e.value:.4g}" if e.exact else with_interval(e.value, *e.interval()) for e in found)
            cells.append([row, *shown])
        widths = [max(len(row[column]) for row in cells) for column in range(len(cells))]
        lines = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
        return "\n".join([head, *lines])

    __repr__ = __str__

    def _extremes(self) -> str:
        """The most different pairs."""
        pairs = sorted(self._apart(), reverse=True)
        return "\n".join(f"{self.names[i]} and {self.names[j]}: {value:.4g}" for value, i, j in pairs[:_SHOWN])

    def _apart(self) -> list[tuple[float, int, int]]:
        """The score of every two blocks that are not one; of the two orders of a divergence, which are equal, one."""
        b, once = len(self.names), self.score == "js"
        places = [(i, j) for i in range(b) for j in range(b) if i != j and (i < j or not once)]
        return [(float(self.pairwise[i, j]), i, j) for i, j in places]


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
    values = torch.tensor([s.value for s in sizes.values()], dtype=torch.float64, device="cpu")
    relative = torch.tensor([s.stderr for s in sizes.values()], dtype=torch.float64, device="cpu") / values.abs()
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
