"""How different blocks are, pair by pair: ratios of their sizes, Jensen-Shannon divergences of their spectra."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.display import Cells, DisplayableRows, Grid, Picture
from hessianlens.errors import InputError, check_flag, check_that, describe_value, expect, suggest_names
from hessianlens.spectra.estimate import Estimate, PowerProduct, with_interval
from hessianlens.spectra.intervals import squared_lengths
from hessianlens.spectra.spectrum import SpectralDensity, check_sigma

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
class Heterogeneity(DisplayableRows):
    """A score for every pair of blocks.

    Attributes:
        names: The blocks.
        score: "js", or what the ratios are of.
        pairwise: The score of block i (row) against block j (column).
        stderr: Its standard errors.
        mean: "js": the mean over all pairs; ratios: the geometric mean over all pairs of the larger over the smaller.
        sizes: What the ratios are of, a size per block; none for "js".
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
                raise InputError(f"block: got {describe_value(name)}; {suggest_names(name, self.names)}")
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


_POINTS_PER_SIGMA = 3
_MOST_POINTS = 200_000


def spectral_heterogeneity(
    spectra: Mapping[str, SpectralDensity], *, sigma: float | None = None, normalise: bool = False
) -> Heterogeneity:
    """Jensen-Shannon divergences between smoothed spectral densities, in nats.

    ``JS(p, q) = H((p + q) / 2) - (H(p) + H(q)) / 2`` with ``H`` the entropy of a density on the grid: 0 for equal
    spectra, symmetric, at most log 2. Its mean over all pairs of blocks is the measure of Zhang et al. 2024, "Why
    Transformers Need Adam". The recipe:

    1. Spectra as they are, or (``normalise=True``) divided by their largest absolute eigenvalue, so that only shapes
       are compared.
    2. One grid for all blocks, equally spaced, four widths beyond the union of the supports, three points to a width.
    3. Every density smoothed with a normal distribution of the same width ``sigma``, then scaled to sum 1 on the grid.
       The code of Zhang et al. uses 100 steps from 10 probes and ``sigma = sqrt(1e-5)`` for eigenvalues of any size.
       Here it is 1/100 of the joint support, or 1.5/steps of the widest support of a sampled spectrum where that is
       more: a smaller width shows the nodes of the quadrature instead of the spectrum. Blocks whose spectra are
       narrower than sigma look alike.

    Noise makes spectra look different. Values are corrected for this bias to first order, and the error bars made, by
    the jackknife: every probe left out once, the same one in all blocks, which may share their probes. Corrected
    values are held within [0, log 2].

    Intervals are those of the divergence at this sigma. They hold the error of the quadrature too: it moves a smoothed
    density by at most ``d`` in total variation (`SpectralDensity.smoothing_error`), the root of a divergence, which is
    a metric, by at most ``sqrt(d log 2)`` for either density. At the default sigma that is next to nothing. They are
    wider by the correction for noise on both sides, which few probes tell only roughly.

    Args:
        spectra: Name -> `SpectralDensity`; those that are not exact must have the same number of probes.
        sigma: Width of the smoothing, after normalisation; the result says which was used.
        normalise: Whether to compare shapes only.

    >>> half = torch.full((1, 2), 0.5, dtype=torch.float64)
    >>> one = SpectralDensity(torch.tensor([[1.0, 2.0]], dtype=torch.float64), half, 2, 2, None, "dense")
    >>> two = SpectralDensity(torch.tensor([[1.0, 9.0]], dtype=torch.float64), half, 2, 2, None, "dense")
    >>> print(spectral_heterogeneity({"q": one, "k": one, "v": two}))
    js between 3 blocks: mean 0.23105 (exact)
            q       k       v
    q       0       0  0.3466
    k       0       0  0.3466
    v  0.3466  0.3466       0
    """
    expect_blocks(spectra)
    check_flag("normalise", normalise)
    sampled = [s for s in spectra.values() if not s.exact]
    counts = sorted({s.probes for s in sampled})
    expect(len(counts) < 2, f"blocks: got spectra with {counts} probes, expected the same number for all.")
    curves, width, off = _common_curves(list(spectra.values()), sigma, normalise)
    value = _divergences(torch.stack([curve.mean(0) for curve in curves]))
    if not sampled:
        zero = torch.zeros_like(value)
        return _summarise(tuple(spectra), value, zero[None], zero, width, Estimate.exactly(0.0, 0, "dense"))
    K = counts[0]
    left_out = torch.stack([_divergences(torch.stack([_without(curve, k) for curve in curves])) for k in range(K)])
    corrected = (K * value - (K - 1) * left_out.mean(0)).clamp(0, math.log(2))
    spread = left_out - left_out.mean(0)
    like = Estimate(0.0, 0.0, K, sampled[0].seed, "jackknife")
    apart = off[:, None] + off
    bias = ((value - corrected).abs() + 2 * corrected.sqrt() * apart + apart.square()).fill_diagonal_(0)
    return _summarise(tuple(spectra), corrected, spread * math.sqrt((K - 1) / K), bias, width, like)


def _summarise(
    names: tuple[str, ...],
    value: Float[Tensor, "b b"],
    spread: Float[Tensor, "k b b"],
    bias: Float[Tensor, "b b"],
    sigma: float,
    like: Estimate,
) -> Heterogeneity:
    """Scores with the errors ``sqrt(sum_k spread_k^2)``, of every pair and of their mean."""
    upper = torch.ones_like(value).triu(1).bool()
    mean = float(value[upper].mean())
    error = float(spread[:, upper].mean(1).norm())
    summary = Divergence(mean, error, like.probes, like.seed, like.method, bias=float(bias[upper].mean()))
    return Heterogeneity(names, "js", value, spread.norm(dim=0), summary, bias=bias, sigma=sigma)


def _common_curves(
    spectra: list[SpectralDensity], sigma: float | None, normalise: bool
) -> tuple[list[Tensor], float, Float[Tensor, "b"]]:
    """Every spectrum's smoothed density per probe, on one grid; its width; what quadrature adds to roots."""
    scales = [max(map(abs, s.support)) if normalise else 1.0 for s in spectra]
    scales = [scale or 1.0 for scale in scales]
    ends = [end / scale for s, scale in zip(spectra, scales, strict=True) for end in s.support]
    low, high = min(ends), max(ends)
    if sigma is None:
        resolved = [s.resolved_sigma() / scale for s, scale in zip(spectra, scales, strict=True)]
        width = max((high - low or max(abs(high), 1.0)) / 100, *resolved)
    else:
        width = check_sigma(sigma)
    points = math.ceil(_POINTS_PER_SIGMA * ((high - low) / width + 8)) + 1
    expect(
        points <= _MOST_POINTS,
        f"sigma: got {width:.3g} for spectra in [{low:.3g}, {high:.3g}], expected a larger width.",
    )
    grid = torch.linspace(low - 4 * width, high + 4 * width, points, dtype=torch.float64, device="cpu")
    pairs = list(zip(spectra, scales, strict=True))
    curves = [s.smooth(grid * scale, width * scale).cpu() for s, scale in pairs]
    per_width = float(grid[-1] - grid[0]) / (2 * math.sqrt(2 * math.pi) * width)
    variation = [min(1.0, per_width * s.smoothing_error(width * scale)) for s, scale in pairs]
    return curves, width, grid.new_tensor([math.sqrt(math.log(2) * v) for v in variation])


def _without(curve: Float[Tensor, "samples points"], k: int) -> Float[Tensor, "points"]:
    """The mean over all probes but one; an exact spectrum has none to leave out."""
    if len(curve) == 1:
        return curve[0]
    return torch.cat([curve[:k], curve[k + 1 :]]).mean(0)


def _divergences(densities: Float[Tensor, "b points"]) -> Float[Tensor, "b b"]:
    p = densities / densities.sum(1, keepdim=True)
    entropy = torch.special.entr(p).sum(1)
    mixed = torch.stack([torch.special.entr((p + row) / 2).sum(1) for row in p])
    return (mixed - (entropy[:, None] + entropy) / 2).clamp(0, math.log(2))
