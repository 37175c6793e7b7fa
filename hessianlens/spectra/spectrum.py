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
from hessianlens.display import Cells, Curve, DisplayableRows, Picture, facts
from hessianlens.errors import InputError, check_function, check_number, check_that, describe_value, expect
from hessianlens.failures import failures_as_input_errors
from hessianlens.sizes import number_of
from hessianlens.spectra.canonical import share_bounds
from hessianlens.spectra.estimate import EXACT_METHODS, Estimate, mean_and_stderr
from hessianlens.spectra.intervals import share_of_directions, squared_lengths
from hessianlens.spectra.probes import check_count

_RESOLVED = 6.0
"""Width of the smoothing times the degree of the quadrature, over half of the support, from which on it is accurate."""
_LEVEL = 0.95
"""Level of the intervals of curves."""


@dataclass(frozen=True, eq=False, repr=False)
class DensityCurve(DisplayableRows):
    """A smoothed density on a grid, with 95 % intervals.

    Attributes:
        grid: Where.
        value: The density, smoothed over ``sigma``.
        stderr: Its standard error over the probes.
        sigma: Width of the smoothing. The intervals are those of the density smoothed over this width.
        low: Lower end of the interval of every point: the error over the probes, and what the quadrature may be off.
        high: Its upper end.
    """

    grid: Float[Tensor, "points"]
    value: Float[Tensor, "points"]
    stderr: Float[Tensor, "points"]
    sigma: float
    low: Float[Tensor, "points"]
    high: Float[Tensor, "points"]

    def _records(self) -> list[dict[str, Any]]:
        columns = [t.tolist() for t in (self.grid, self.value, self.low, self.high, self.stderr)]
        names = ("eigenvalue", "density", "low", "high", "stderr")
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _cells(self) -> Cells:
        return facts({"points": len(self.grid), "sigma": self.sigma})

    def _picture(self, asked: bool) -> Picture:
        """The density on a logarithmic axis, in its intervals."""
        spread = bool(torch.isfinite(self.high).all() and (self.high > self.low).any())
        low, high = (self.low.tolist(), self.high.tolist()) if spread else ((), ())
        return Curve(self.grid.tolist(), self.value.tolist(), "eigenvalue", "density", low, high, log=True)

    def __repr__(self) -> str:
        low, high = float(self.grid[0]), float(self.grid[-1])
        return f"density at {len(self.grid)} points of [{low:.4g}, {high:.4g}], smoothed over {self.sigma:.3g}"


@dataclass(frozen=True, eq=False, repr=False)
class CumulativeDistribution(DisplayableRows):
    """The share of eigenvalues at or below every ``x``.

    Attributes:
        x: Where it was asked for.
        value: The share; the middle of what the moments known from Lanczos allow.
        stderr: Its standard error over the probes.
        lower: Lower end of the 95 % interval, which holds both the error over the probes and all that the finite
            number of Lanczos steps leaves open.
        upper: Its upper end.
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
        """The share over the eigenvalues, in its intervals; a single point is no picture."""
        if len(self.x) < 2:
            return None
        order = self.x.argsort()
        x, value, lower, upper = (t[order].tolist() for t in (self.x, self.value, self.lower, self.upper))
        return Curve(x, value, "eigenvalue", "share at or below", lower, upper)

    def __repr__(self) -> str:
        return f"share of eigenvalues at or below each of {len(self.x)} numbers"


@dataclass(frozen=True, eq=False)
class SpectralDensity(DisplayableRows):
    """``mu = 1/n sum_i delta(lambda - lambda_i)``, as the mean over probes of ``sum_j w_kj delta(lambda - theta_kj)``.

    The quadrature of a probe is exact for polynomials of degree below ``2 steps`` only. What else the probe's
    distribution may be is in the intervals of `cdf` and of `hessianlens.inertia` (Chebyshev, Markov and Stieltjes),
    of `on_grid` and of `hessianlens.heterogeneity` (error of the best polynomial). That of `expectation` is over the
    probes alone.

    Attributes:
        nodes: Ritz values ``theta``, one row per probe; one row of eigenvalues if the spectrum is exact.
        weights: ``w``; every row sums to 1.
        dimension: n, the number of eigenvalues.
        probes: Number of start vectors, or n if the spectrum is exact.
        seed: Seed of the probes; None if the spectrum is exact.
        method: "lanczos" or "dense".
        dtype: Dtype of the operator; it sets what rounding is.
        residuals: Signed residuals of the Ritz vectors, of which the bounds are made; None if the spectrum is exact.
    """

    nodes: Float[Tensor, "samples steps"]
    weights: Float[Tensor, "samples steps"]
    dimension: int
    probes: int
    seed: int | None
    method: str
    dtype: torch.dtype = torch.float64
    residuals: Float[Tensor, "samples steps"] | None = None

    def __post_init__(self) -> None:
        """A sampled spectrum has residuals; without them nothing would be known of its error."""
        there = self.exact or isinstance(self.residuals, Tensor)
        check_that(there, "residuals", self.residuals, "one per node for a sampled spectrum, such as `density` returns")

    @property
    def exact(self) -> bool:
        """Whether the nodes are the eigenvalues themselves."""
        return self.method in EXACT_METHODS

    @property
    def resolved(self) -> bool:
        """Whether the distribution of every probe is known completely: the Krylov spaces are invariant."""
        return self.exact or not bool(self._residuals.any())

    @property
    def _residuals(self) -> Float[Tensor, "samples steps"]:
        return torch.zeros_like(self.nodes) if self.residuals is None else self.residuals

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
        """``1/n tr f(A)`` for a function of the eigenvalues, smooth on the scale of the distances between nodes.

        The interval is over the probes alone: nothing bounds the error of the quadrature for any function. Shares have
        `cdf` and `hessianlens.inertia`.
        """
        check_function("function", function, "a function of eigenvalues")
        with failures_as_input_errors(
            "function: it failed", f"it was given eigenvalues of shape {tuple(self.nodes.shape)}"
        ):
            values = function(self.nodes)
        if not isinstance(values, Tensor) or values.shape != self.nodes.shape:
            wanted = f"a number for every eigenvalue, {tuple(self.nodes.shape)}"
            raise InputError(f"function: returned {describe_value(values)}, expected {wanted}.")
        return self.estimate((self.weights * values).sum(1))

    def moment(self, power: int) -> Estimate:
        """``1/n tr A^power``, for powers below ``2 steps``: the quadrature is exact for these."""
        check_count("power", power, 0, "moments are powers")
        known = self.resolved or power < 2 * self.steps
        need = f"below {2 * self.steps} after {number_of(self.steps, 'step')} of Lanczos; take more steps"
        expect(known, f"power: got {power}; expected a power {need}.")
        return self.expectation(lambda x: x**power)

    def estimate(self, samples: Float[Tensor, "samples"]) -> Estimate:
        """The mean of a number per probe."""
        check_shape("samples", check_dense("samples", samples), (len(self.nodes),), "one for every probe")
        if self.exact:
            return Estimate.exactly(float(samples[0]), self.probes, self.method)
        return Estimate.from_samples(samples, self.probes, self.seed, self.method)

    def cdf(self, x: Float[Tensor, "points"] | float) -> CumulativeDistribution:
        """The share of eigenvalues at or below ``x``.

        Whatever distribution a probe sees, its share is within the bounds of Chebyshev, Markov and Stieltjes
        (`hessianlens.spectra.canonical`); their means over the probes are moved out by the error of such means
        (`hessianlens.spectra.intervals.share_of_directions`). Takes one small eigenvalue problem per point and probe.
        """
        at = check_dense("x", x) if isinstance(x, Tensor) else self.nodes.new_tensor(check_number("x", x))
        expect(not at.is_complex(), f"x: got dtype {at.dtype}, expected real numbers.")
        at = at.detach().to(dtype=torch.float64, device=self.nodes.device).reshape(-1)
        if self.exact:
            share = (self.weights * (self.nodes <= at[:, None])).sum(1)
            return CumulativeDistribution(at, share, torch.zeros_like(share), share, share)
        below, up_to = self._share_bounds(at)
        value, stderr = mean_and_stderr((below + up_to) / 2)
        ends = [
            (share_of_directions(_LEVEL, least, *drawn)[0], share_of_directions(_LEVEL, most, *drawn)[1])
            for drawn in [(self.dimension, self.probes)]
            for least, most in zip(below.mean(0).tolist(), up_to.mean(0).tolist(), strict=True)
        ]
        lower, upper = value.new_tensor(ends).reshape(-1, 2).T
        return CumulativeDistribution(at, value, stderr, lower, upper)

    def _share_bounds(self, at: Float[Tensor, "points"]) -> tuple[Float[Tensor, "p points"], Float[Tensor, "p points"]]:
        """The share below x at least, and up to x at most, of every probe."""
        return share_bounds(self.nodes, self.weights, self._residuals, at.to(self.nodes))

    def on_grid(
        self, n: int = 512, sigma: float | None = None, bounds: tuple[float, float] | None = None
    ) -> DensityCurve:
        """The density convolved with a normal distribution, ``sum_j w_j N(lambda; theta_j, sigma^2)``.

        The intervals hold the error over the probes (that of squared lengths, as the smoothed density is
        ``v^T f(A) v`` with ``f >= 0``, and no less than that of a share of directions of the same size, since few
        probes tell little of their spread) and the error of the quadrature (`smoothing_error`).

        Args:
            n: Number of grid points.
            sigma: Width of the smoothing; by default the smallest that the steps of Lanczos resolve (`default_sigma`).
            bounds: Ends of the grid; by default four widths beyond the support.
        """
        check_count("n", n, 2, "a grid has two ends")
        sigma = self.default_sigma() if sigma is None else check_sigma(sigma)
        low, high = self.support
        low, high = (low - 4 * sigma, high + 4 * sigma) if bounds is None else _checked_bounds(bounds)
        grid = torch.linspace(low, high, n, dtype=torch.float64, device=self.nodes.device)
        curves = self.smooth(grid, sigma)
        if self.exact:
            return DensityCurve(grid, curves[0], torch.zeros_like(curves[0]), sigma, curves[0], curves[0])
        value, stderr = mean_and_stderr(curves)
        off = self.smoothing_error(sigma) / (sigma * math.sqrt(2 * math.pi))
        relative = torch.where(value > 0, stderr / value, 0).tolist()
        ends = value.new_tensor([squared_lengths(_LEVEL, self.probes, each) for each in relative])
        low_end, high_end = value * ends.T
        # With f <= top, v^T (f / top) v scatters no more than a share, also where few probes show little of that.
        top = 1 / (sigma * math.sqrt(2 * math.pi))
        shares = (value / top).clamp(0, 1).tolist()
        soft = top * value.new_tensor([share_of_directions(_LEVEL, p, self.dimension, self.probes) for p in shares])
        low_end, high_end = torch.minimum(low_end, soft[:, 0]), torch.maximum(high_end, soft[:, 1])
        return DensityCurve(grid, value, stderr, sigma, (low_end - off).clamp_min(0), high_end + off)

    def default_sigma(self) -> float:
        """The smallest width that is resolved.

        Of eigenvalues a third of their mean distance, at least 1/300 of the support; of quadratures
        ``1.5 width / steps``, from which on their error is below a millionth (`smoothing_error`).
        """
        low, high = self.support
        width = high - low if high > low else max(abs(high), 1.0)
        least = width / (3 * min(max(self.steps - 1, 1), 100))
        return least if self.resolved else max(least, self.resolved_sigma())

    def resolved_sigma(self) -> float:
        """Width of the smoothing from which on the error of the quadrature is negligible; 0 where there is none."""
        return 0.0 if self.resolved else _RESOLVED * self._half_support() / (2 * self.steps)

    def smoothing_error(self, sigma: float) -> float:
        """Bound on the error of the quadrature for ``exp(-(lambda - x)^2 / (2 sigma^2))``, whatever x.

        It is at most twice the distance of that function from the polynomials of degree ``2 steps - 1``, thus at most
        ``4 rho^(1 - 2 steps) exp(b^2 / (2 s^2)) / (rho - 1)`` with ``b = (rho - 1 / rho) / 2``, for all ``rho > 1`` and
        ``s`` the width over half of the support (Bernstein). The support is taken from the Ritz values at the ends.
        """
        if self.resolved:
            return 0.0
        s = check_sigma(sigma) / self._half_support()
        rho = 1 + torch.logspace(-4, 2, 600, dtype=torch.float64, device="cpu")
        b = (rho - 1 / rho) / 2
        logs = math.log(4) + (1 - 2 * self.steps) * rho.log() + (b / s).square() / 2 - (rho - 1).log()
        return min(1.0, math.exp(min(0.0, float(logs.min()))))

    def _half_support(self) -> float:
        """Half of the distance between the ends of the support; the residuals of the outer Ritz values are added."""
        low, high = self.support
        slack = float(self._residuals[:, [0, -1]].abs().max())
        return max((high - low) / 2 + slack, torch.finfo(torch.float64).tiny)

    def smooth(self, grid: Float[Tensor, "points"], sigma: float) -> Float[Tensor, "samples points"]:
        """The smoothed density of every probe."""
        check_tensor("grid", grid, (1,))
        check_sigma(sigma)
        curves, grid = [], grid.to(self.nodes.device)
        for nodes, weights in zip(self.nodes, self.weights, strict=True):
            bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / sigma).square())
            curves.append(bumps @ weights / (sigma * math.sqrt(2 * math.pi)))
        return torch.stack(curves)

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
        how = "exact" if self.exact else f"{number_of(self.probes, 'probe')} of {number_of(self.steps, 'step')}"
        return f"spectral density of {number_of(self.dimension, 'eigenvalue')} in [{low:.4g}, {high:.4g}] ({how})"

    __repr__ = __str__


def check_sigma(sigma: float) -> float:
    """A positive width."""
    if isinstance(sigma, bool) or not isinstance(sigma, Real) or not 0 < sigma < math.inf:
        raise InputError(f"sigma: got {describe_value(sigma)}, expected a positive width of the smoothing.")
    return float(sigma)


def _checked_bounds(bounds: object) -> tuple[float, float]:
    check_that(isinstance(bounds, Sequence) and len(bounds) == 2, "bounds", bounds, "two numbers")
    assert isinstance(bounds, Sequence)
    low, high = (check_number("bounds", end) for end in bounds)
    expect(low < high, f"bounds: got ({low}, {high}), expected the lower end first.")
    return low, high
