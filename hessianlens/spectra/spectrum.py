"""The distribution of eigenvalues, as a weighted set of points for every probe."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_dense, check_shape, check_tensor
from hessianlens.errors import InputError, check_function, check_number, check_that, expect, shown
from hessianlens.failures import explained
from hessianlens.showing import Curve, Listed, Picture
from hessianlens.showing.shown import Cells, facts
from hessianlens.spectra.estimate import EXACT_METHODS, Estimate, mean_and_stderr
from hessianlens.spectra.probes import check_count


@dataclass(frozen=True, eq=False, repr=False)
class DensityCurve(Listed):
    """A smoothed density on a grid, with its standard error over the probes."""

    grid: Float[Tensor, "points"]
    value: Float[Tensor, "points"]
    stderr: Float[Tensor, "points"]
    sigma: float

    def _records(self) -> list[dict[str, Any]]:
        columns = (self.grid.tolist(), self.value.tolist(), self.stderr.tolist())
        return [{"eigenvalue": x, "density": y, "stderr": e} for x, y, e in zip(*columns, strict=True)]

    def _cells(self) -> Cells:
        return facts({"points": len(self.grid), "sigma": self.sigma})

    def _picture(self, asked: bool) -> Picture:
        """The density on a logarithmic axis, with two standard errors to either side."""
        spread = bool(torch.isfinite(self.stderr).all() and (self.stderr > 0).any())
        low, high = (self.value - 2 * self.stderr).clamp_min(0).tolist(), (self.value + 2 * self.stderr).tolist()
        drawn = (low, high) if spread else ((), ())
        return Curve(self.grid.tolist(), self.value.tolist(), "eigenvalue", "density", drawn[0], drawn[1], log=True)

    def __repr__(self) -> str:
        low, high = float(self.grid[0]), float(self.grid[-1])
        return f"density at {len(self.grid)} points of [{low:.4g}, {high:.4g}], smoothed over {self.sigma:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class CumulativeDistribution(Listed):
    """The share of eigenvalues at or below every ``x``.

    Attributes:
        x: Where it was asked for.
        value: The share.
        stderr: Its standard error over the probes.
        lower: What the share cannot be below, for the same probes, whatever the number of Lanczos steps.
        upper: What it cannot be above.
    """

    x: Float[Tensor, "points"]
    value: Float[Tensor, "points"]
    stderr: Float[Tensor, "points"]
    lower: Float[Tensor, "points"]
    upper: Float[Tensor, "points"]

    def _records(self) -> list[dict[str, Any]]:
        names = ("x", "value", "stderr", "lower", "upper")
        columns = [getattr(self, name).tolist() for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _picture(self, asked: bool) -> Picture | None:
        """The share over the eigenvalues, between its bounds; a single point is no picture."""
        if len(self.x) < 2:
            return None
        order = self.x.argsort()
        x, value, lower, upper = (t[order].tolist() for t in (self.x, self.value, self.lower, self.upper))
        return Curve(x, value, "eigenvalue", "share at or below", lower, upper)

    def __repr__(self) -> str:
        return f"share of eigenvalues at or below each of {len(self.x)} numbers"


@dataclass(frozen=True, eq=False)
class SpectralDensity(Listed):
    """``mu = 1/n sum_i delta(lambda - lambda_i)``, as the mean over probes of ``sum_j w_kj delta(lambda - theta_kj)``.

    Error bars are those of the mean over the probes. They do not hold the error of the quadrature, which is zero for
    polynomials of degree below ``2 steps`` and falls with the number of steps for the rest.

    Attributes:
        nodes: Ritz values ``theta``, one row per probe; one row of eigenvalues if the spectrum is exact.
        weights: ``w``; every row sums to 1.
        dimension: n, the number of eigenvalues.
        probes: Number of start vectors, or n if the spectrum is exact.
        seed: Seed of the probes; None if the spectrum is exact.
        method: "lanczos" or "dense".
        dtype: Dtype of the operator; it sets what rounding is.
    """

    nodes: Float[Tensor, "samples steps"]
    weights: Float[Tensor, "samples steps"]
    dimension: int
    probes: int
    seed: int | None
    method: str
    dtype: torch.dtype = torch.float64

    @property
    def exact(self) -> bool:
        """Whether the nodes are the eigenvalues themselves."""
        return self.method in EXACT_METHODS

    @property
    def steps(self) -> int:
        """Nodes per probe."""
        return self.nodes.shape[1]

    @property
    def support(self) -> tuple[float, float]:
        """The smallest and largest node that carries weight."""
        seen = self.nodes[self.weights > 1e-12]
        return float(seen.min()), float(seen.max())

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Estimate:
        """``1/n tr f(A)`` for a function of the eigenvalues."""
        check_function("function", function, "a function of eigenvalues")
        with explained("function: it failed", f"it was given eigenvalues of shape {tuple(self.nodes.shape)}"):
            values = function(self.nodes)
        if not isinstance(values, Tensor) or values.shape != self.nodes.shape:
            wanted = f"a number for every eigenvalue, {tuple(self.nodes.shape)}"
            raise InputError(f"function: returned {shown(values)}, expected {wanted}.")
        return self.estimate((self.weights * values).sum(1))

    def moment(self, power: int) -> Estimate:
        """``1/n tr A^power``; free of quadrature error for powers below ``2 steps``."""
        check_count("power", power, 0, "moments are powers")
        return self.expectation(lambda x: x**power)

    def estimate(self, samples: Float[Tensor, "samples"]) -> Estimate:
        """The mean of a number per probe."""
        check_shape("samples", check_dense("samples", samples), (len(self.nodes),), "one for every probe")
        if self.exact:
            return Estimate.exactly(float(samples[0]), self.probes, self.method)
        return Estimate.from_samples(samples, self.probes, self.seed, self.method)

    def cdf(self, x: Float[Tensor, "points"] | float) -> CumulativeDistribution:
        """The share of eigenvalues at or below ``x``.

        ``lower`` and ``upper`` are the bounds of Chebyshev, Markov and Stieltjes: the distribution seen by a probe
        differs from its Gauss quadrature by at most the weight of the node next to ``x`` on either side.
        """
        at = check_dense("x", x) if isinstance(x, Tensor) else self.nodes.new_tensor(check_number("x", x))
        expect(not at.is_complex(), f"x: got dtype {at.dtype}, expected real numbers.")
        at = at.detach().to(dtype=torch.float64, device=self.nodes.device).reshape(-1)
        after = torch.searchsorted(self.nodes.contiguous(), at.expand(len(self.nodes), -1).contiguous(), right=True)
        padded = torch.nn.functional.pad(self.weights, (1, 1))  # weight 0 before the first and after the last node
        total = padded.cumsum(1)
        share = total.gather(1, after)
        value, stderr = self._summary(share)
        if self.exact or self.steps >= self.dimension:
            return CumulativeDistribution(at, value, stderr, value, value)
        lower, upper = share - padded.gather(1, after), share + padded.gather(1, after + 1)
        return CumulativeDistribution(at, value, stderr, lower.mean(0), upper.mean(0))

    def on_grid(
        self, n: int = 512, sigma: float | None = None, bounds: tuple[float, float] | None = None
    ) -> DensityCurve:
        """The density convolved with a normal distribution, ``sum_j w_j N(lambda; theta_j, sigma^2)``.

        Args:
            n: Number of grid points.
            sigma: Width of the smoothing; by default about a third of the mean distance between nodes, at least 1/300
                of the support.
            bounds: Ends of the grid; by default four widths beyond the support.
        """
        check_count("n", n, 2, "a grid has two ends")
        sigma = self.default_sigma() if sigma is None else check_sigma(sigma)
        low, high = self.support
        low, high = (low - 4 * sigma, high + 4 * sigma) if bounds is None else _checked_bounds(bounds)
        grid = torch.linspace(low, high, n, dtype=torch.float64, device=self.nodes.device)
        value, stderr = self._summary(self.smooth(grid, sigma))
        return DensityCurve(grid, value, stderr, sigma)

    def default_sigma(self) -> float:
        """A third of the mean distance between nodes, at least 1/300 of the support."""
        low, high = self.support
        width = high - low if high > low else max(abs(high), 1.0)
        return width / (3 * min(max(self.steps - 1, 1), 100))

    def smooth(self, grid: Float[Tensor, "points"], sigma: float) -> Float[Tensor, "samples points"]:
        """The smoothed density of every probe."""
        check_tensor("grid", grid, (1,))
        check_sigma(sigma)
        curves, grid = [], grid.to(self.nodes.device)
        for nodes, weights in zip(self.nodes, self.weights, strict=True):
            bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / sigma).square())
            curves.append(bumps @ weights / (sigma * math.sqrt(2 * math.pi)))
        return torch.stack(curves)

    def _summary(self, samples: Float[Tensor, "samples n"]) -> tuple[Tensor, Tensor]:
        if self.exact:
            return samples[0], torch.zeros_like(samples[0])
        return mean_and_stderr(samples)

    def _records(self) -> list[dict[str, Any]]:
        return [
            {"probe": k, "node": node, "weight": weight}
            for k, (nodes, weights) in enumerate(zip(self.nodes.tolist(), self.weights.tolist(), strict=True))
            for node, weight in zip(nodes, weights, strict=True)
        ]

    def _cells(self) -> Cells:
        low, high = self.support
        found = {"eigenvalues": self.dimension, "smallest": low, "largest": high, "mean": str(self.moment(1))}
        return facts({**found, "method": self.method, "probes": self.probes, "nodes per probe": self.steps})

    def _picture(self, asked: bool) -> Picture | None:
        """The smoothed density."""
        return self.on_grid(256)._picture(asked)

    def __str__(self) -> str:
        low, high = self.support
        how = "exact" if self.exact else f"{self.probes} probes of {self.steps} steps"
        return f"spectral density of {self.dimension} eigenvalues in [{low:.4g}, {high:.4g}] ({how})"

    __repr__ = __str__


def check_sigma(sigma: float) -> float:
    """A positive width."""
    if isinstance(sigma, bool) or not isinstance(sigma, Real) or not 0 < sigma < math.inf:
        raise InputError(f"sigma: got {shown(sigma)}, expected a positive width of the smoothing.")
    return float(sigma)


def _checked_bounds(bounds: object) -> tuple[float, float]:
    check_that(isinstance(bounds, Sequence) and len(bounds) == 2, "bounds", bounds, "two numbers")
    assert isinstance(bounds, Sequence)
    low, high = (check_number("bounds", end) for end in bounds)
    expect(low < high, f"bounds: got ({low}, {high}), expected the lower end first.")
    return low, high
