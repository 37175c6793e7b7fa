"""How many eigenvalues are negative, and how much of the spectrum they carry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from hessianlens.errors import check_that
from hessianlens.showing import Listed, Picture, Share, Shares
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.spectrum import SpectralDensity


@dataclass(frozen=True, repr=False)
class Inertia(Listed):
    """Shares of negative, zero and positive eigenvalues, and the mass of negative curvature.

    Attributes:
        negative: Share of eigenvalues below ``-threshold``.
        zero: Share of eigenvalues within the threshold of zero.
        positive: Share of eigenvalues above the threshold.
        mass: ``sum_{lambda < 0} |lambda| / sum |lambda|``; eigenvalues within the threshold count as zero.
        bounds: What the negative share lies between, for the same probes, whatever the number of Lanczos steps.
        threshold: An eigenvalue of at most this size counts as zero.
        dimension: Number of eigenvalues.
    """

    negative: Estimate
    zero: Estimate
    positive: Estimate
    mass: Estimate
    bounds: tuple[float, float]
    threshold: float
    dimension: int

    def _records(self) -> list[dict[str, Any]]:
        shares = {"negative": self.negative, "zero": self.zero, "positive": self.positive, "negative mass": self.mass}
        return [{"share": name, **share.row()} for name, share in shares.items()]

    def _picture(self, asked: bool) -> Picture:
        """One bar: below zero, at zero, above zero."""
        parts = (("negative", self.negative, "red"), ("zero", self.zero, "muted"), ("positive", self.positive, "blue"))
        shares = [Share(name, share.value, f"{100 * share.value:.3g} %", colour) for name, share, colour in parts]
        mass = f"{100 * self.mass.value:.3g} % of all curvature is negative"
        return Shares(shares, f"of {self.dimension} eigenvalues; {mass}")

    def __str__(self) -> str:
        low, high = self.bounds
        within = "" if self.negative.exact else f", between {low:.3g} and {high:.3g} with more steps"
        return (
            f"share of {self.dimension} eigenvalues: negative {self.negative}{within}, zero {self.zero}; "
            f"negative mass {self.mass}"
        )

    __repr__ = __str__


def inertia_of(spectrum: SpectralDensity, threshold: float | None = None) -> Inertia:
    """The inertia of a spectral density.

    Args:
        spectrum: A result of `hessianlens.spectra.density`.
        threshold: Eigenvalues of at most this size count as zero. By default ``10 sqrt(n) eps max |lambda|``, with eps
            of the operator's dtype: the size of what rounding leaves of a zero.

    >>> eigenvalues = torch.tensor([[-1.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    >>> spectrum = SpectralDensity(eigenvalues, torch.full((1, 4), 0.25), 4, 4, None, "dense")
    >>> print(inertia_of(spectrum))
    share of 4 eigenvalues: negative 0.25 (exact), zero 0.25 (exact); negative mass 0.25 (exact)
    """
    size = max(abs(end) for end in spectrum.support)
    if threshold is None:
        threshold = 10 * math.sqrt(spectrum.dimension) * torch.finfo(spectrum.dtype).eps * size
    fits = isinstance(threshold, Real) and not isinstance(threshold, bool) and 0 <= threshold < math.inf
    check_that(fits, "threshold", threshold, "a size of at least 0")
    cdf = spectrum.cdf(math.nextafter(-threshold, -math.inf))
    return Inertia(
        negative=spectrum.expectation(lambda x: (x < -threshold).double()),
        zero=spectrum.expectation(lambda x: (x.abs() <= threshold).double()),
        positive=spectrum.expectation(lambda x: (x > threshold).double()),
        mass=_mass(spectrum, threshold),
        bounds=(float(cdf.lower), float(cdf.upper)),
        threshold=threshold,
        dimension=spectrum.dimension,
    )


def _mass(spectrum: SpectralDensity, threshold: float) -> Estimate:
    """Ratio ``R`` of two means over the probes; its error is that of the mean of ``(a - R b) / mean b``."""
    sizes = torch.where(spectrum.nodes.abs() > threshold, spectrum.nodes.abs(), 0) * spectrum.weights
    everything, below = sizes.sum(1), (sizes * (spectrum.nodes < 0)).sum(1)
    mean = float(everything.mean())
    if mean == 0:
        return spectrum.estimate(torch.zeros_like(everything))
    ratio = float(below.mean()) / mean
    return spectrum.estimate(ratio + (below - ratio * everything) / mean)
