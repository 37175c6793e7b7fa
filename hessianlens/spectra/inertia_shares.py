"""How many eigenvalues are negative, zero and positive, and how much of the curvature is negative.

Both come from stochastic Lanczos quadrature where the eigenvalues themselves are too many. Few steps of Lanczos do not
tell on which side of zero the small eigenvalues lie, however many probes there are: intervals over the probes alone
miss the truth nearly always. Those here are made of two parts: for every probe, what all distributions with the moments
that Lanczos knows have at least and at most (`hessianlens.spectra.canonical`); around the means of these, the error
over the probes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.display import DisplayableRows, Picture, Share, Shares
from hessianlens.errors import check_that, expect
from hessianlens.sizes import number_of
from hessianlens.spectra.canonical import shortfall_bounds
from hessianlens.spectra.estimate import Estimate, PowerProduct
from hessianlens.spectra.intervals import check_level, share_of_directions
from hessianlens.spectra.norms import norm_from_lengths
from hessianlens.spectra.spectrum import SpectralDensity

WIDE = 0.2
"""Width of the interval of a share above which pages do not draw it."""
RELATIVE_ZERO = 1e-3
"""Size of an eigenvalue, over the largest, up to which pages count it as zero."""


@dataclass(frozen=True, repr=False)
class ShareEstimate(Estimate):
    """A share that is known to lie within its interval; its value is only the middle of a bracket and not printed.

    >>> print(EigenvalueShare(0.3, 0.01, 10, 0, "lanczos", lower=0.2, upper=0.4, dimension=500))
    between 0.185 and 0.419 (10 probes)
    """

    @property
    def width(self) -> float:
        """Of the 95 % interval."""
        low, high = self.interval()
        return high - low

    def __str__(self) -> str:
        if self.exact:
            return super().__str__()
        low, high = self.interval()
        return f"between {low:.3g} and {high:.3g} ({number_of(self.probes, 'probe')}{': few' if self.few else ''})"

    __repr__ = __str__


@dataclass(frozen=True, repr=False)
class EigenvalueShare(ShareEstimate):
    """A share of the eigenvalues.

    Attributes:
        lower: Mean over the probes of what the share is at least, given the moments that Lanczos knows.
        upper: Mean of what it is at most.
        dimension: Number of eigenvalues.
    """

    lower: float = 0.0
    upper: float = 1.0
    dimension: int = 1

    @property
    def few(self) -> bool:
        """No number of probes is few: the variance of such a share is known beforehand."""
        return False

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval at this level, bracket included."""
        check_level(level)
        if self.exact:
            return self.value, self.value
        low, _ = share_of_directions(level, self.lower, self.dimension, self.probes)
        _, high = share_of_directions(level, self.upper, self.dimension, self.probes)
        return low, high


@dataclass(frozen=True, repr=False)
class CurvatureShare(ShareEstimate):
    """A share of the curvature, ``a / (a + b)``, from the ratios ``a / b``.

    Traces ``a`` and ``b`` of the negative and the positive part are means of squared lengths over the probes, and
    nearly independent; their ratio's interval is that of `PowerProduct`.

    Attributes:
        least: The ratio at both ends of what ``a`` may be, with the largest ``b`` that goes with them.
        most: The same with the smallest ``b``.
    """

    least: tuple[Estimate, ...] = ()
    most: tuple[Estimate, ...] = ()

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval at this level, bracket included."""
        check_level(level)
        if self.exact:
            return self.value, self.value
        low = min(ratio.interval(level)[0] for ratio in self.least)
        high = max(ratio.interval(level)[1] for ratio in self.most)
        return _share_of_ratio(low), _share_of_ratio(high)


def _share_of_ratio(ratio: float) -> float:
    """``r / (1 + r)``."""
    return 1.0 if math.isinf(ratio) else ratio / (1 + ratio)


@dataclass(frozen=True, repr=False)
class Inertia(DisplayableRows):
    """Shares of negative, zero and positive eigenvalues, and the mass of negative curvature.

    Attributes:
        negative: Share of eigenvalues below ``-threshold``.
        zero: Share of eigenvalues within the threshold of zero.
        positive: Share of eigenvalues above the threshold.
        mass: ``sum_{lambda < 0} |lambda| / sum |lambda|``; eigenvalues within the threshold count as zero.
        threshold: An eigenvalue of at most this size counts as zero.
        relative: The threshold over the largest absolute eigenvalue.
        dimension: Number of eigenvalues.
    """

    negative: ShareEstimate
    zero: ShareEstimate
    positive: ShareEstimate
    mass: ShareEstimate
    threshold: float
    relative: float
    dimension: int

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of the negative share."""
        return self.negative.interval()

    @property
    def exact(self) -> bool:
        """Whether the eigenvalues were counted."""
        return self.negative.exact

    @property
    def wide(self) -> bool:
        """Whether the interval of one of the three shares is too wide to be drawn."""
        return max(share.width for share in (self.negative, self.zero, self.positive)) > WIDE

    def _records(self) -> list[dict[str, Any]]:
        shares = {"negative": self.negative, "zero": self.zero, "positive": self.positive, "negative mass": self.mass}
        return [{"share": name, **share.row(), "threshold": self.threshold} for name, share in shares.items()]

    def _picture(self, asked: bool) -> Picture | None:
        """One bar: below zero, at zero, above zero; unless asked for, only where the shares are known."""
        if self.wide and not asked:
            return None
        parts = (("negative", self.negative, "red"), ("zero", self.zero, "muted"), ("positive", self.positive, "blue"))
        shares = [Share(name, share.value, in_percent(share), colour) for name, share, colour in parts]
        level = f"zero: up to {self.relative:.0e} of the largest"
        return Shares(shares, f"of {self.dimension} eigenvalues ({level}); negative curvature: {in_percent(self.mass)}")

    def __str__(self) -> str:
        shares = f"negative {self.negative}, zero {self.zero}, positive {self.positive}"
        level = f"|eigenvalue| <= {self.threshold:.3g} counts as zero, {self.relative:.0e} of the largest"
        hint = "; narrower with more steps, or relative=1e-3" if self.wide and self.relative < 1e-3 else ""
        return f"share of {self.dimension} eigenvalues: {shares}; negative mass {self.mass} ({level}{hint})"

    __repr__ = __str__


def in_percent(share: ShareEstimate) -> str:
    """A share as it is displayed: the number where it is exact, else the ends of its interval.

    >>> in_percent(EigenvalueShare(0.3, 0.01, 10, 0, "lanczos", lower=0.2, upper=0.4, dimension=500))
    '18.5 to 41.9 %'
    """
    low, high = (f"{100 * end:.3g}" for end in share.interval())
    return f"{low} %" if low == high else f"{low} to {high} %"


def inertia_of(spectrum: SpectralDensity, threshold: float | None = None, relative: float | None = None) -> Inertia:
    """The inertia of a spectral density.

    Args:
        spectrum: A result of `hessianlens.spectra.density`.
        threshold: Eigenvalues of at most this size count as zero. By default ``10 sqrt(n) eps max |lambda|``, with eps
            of the operator's dtype: the size of what rounding leaves of a zero.
        relative: The same over the largest absolute eigenvalue, in place of `threshold`.

    >>> eigenvalues = torch.tensor([[-1.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    >>> spectrum = SpectralDensity(eigenvalues, torch.full((1, 4), 0.25), 4, 4, None, "dense")
    >>> found = inertia_of(spectrum, relative=0.01)
    >>> found.negative, found.zero, found.mass, found.threshold
    (0.25 (exact), 0.25 (exact), 0.25 (exact), 0.02)
    """
    check_thresholds(threshold, relative)
    size = max(abs(end) for end in spectrum.support)
    if threshold is None:
        rounding = 10 * math.sqrt(spectrum.dimension) * torch.finfo(spectrum.dtype).eps
        threshold = (rounding if relative is None else relative) * size
    shares = _exact_shares(spectrum, threshold) if spectrum.exact else _sampled_shares(spectrum, threshold)
    level = threshold / size if size else 0.0
    return Inertia(*shares, _mass(spectrum, threshold), threshold, level, spectrum.dimension)


def check_thresholds(threshold: float | None, relative: float | None) -> None:
    """At most one of the two, a size."""
    expect(
        threshold is None or relative is None,
        f"relative: got {relative} beside threshold={threshold}; expected one of the two; leave one out.",
    )
    for name, size in (("threshold", threshold), ("relative", relative)):
        fits = isinstance(size, Real) and not isinstance(size, bool) and 0 <= size < math.inf
        check_that(size is None or fits, name, size, "a size of at least 0")


def _exact_shares(spectrum: SpectralDensity, threshold: float) -> tuple[ShareEstimate, ShareEstimate, ShareEstimate]:
    nodes, n = spectrum.nodes[0], spectrum.dimension
    counts = [(nodes < -threshold).sum(), (nodes.abs() <= threshold).sum(), (nodes > threshold).sum()]
    negative, zero, positive = (ShareEstimate.exactly(int(count) / n, spectrum.probes, "dense") for count in counts)
    return negative, zero, positive


def _sampled_shares(spectrum: SpectralDensity, threshold: float) -> tuple[ShareEstimate, ShareEstimate, ShareEstimate]:
    """From the bounds at either side of zero, each in front of the threshold as seen from the outside."""
    below = math.nextafter(-threshold, -math.inf)
    at = spectrum.nodes.new_tensor([below, threshold])
    least, most = spectrum._share_bounds(at)
    negative = _share(spectrum, least[:, 0], most[:, 0])
    zero = _share(spectrum, (least[:, 1] - most[:, 0]).clamp_min(0), most[:, 1] - least[:, 0])
    positive = _share(spectrum, 1 - most[:, 1], 1 - least[:, 1])
    return negative, zero, positive


def _share(spectrum: SpectralDensity, least: Float[Tensor, "probes"], most: Float[Tensor, "probes"]) -> EigenvalueShare:
    middle = Estimate.from_samples((least + most) / 2, spectrum.probes, spectrum.seed, spectrum.method)
    return EigenvalueShare(
        middle.value,
        middle.stderr,
        spectrum.probes,
        spectrum.seed,
        spectrum.method,
        lower=float(least.mean()),
        upper=float(most.mean()),
        dimension=spectrum.dimension,
    )


def _mass(spectrum: SpectralDensity, threshold: float) -> ShareEstimate:
    """``a / (a + b)`` with ``a`` the trace of the negative part and ``b = a + trace`` that of the positive one.

    ``-x [x < -t] = (-t - x)_+ + t [x < -t]`` is a function that bends, and a share. The trace is known without error of
    the quadrature, but for eigenvalues within the threshold: these move ``b`` by at most ``t`` times their share.
    """
    nodes, weights = spectrum.nodes, spectrum.weights
    if spectrum.exact:
        sizes = torch.where(nodes.abs() > threshold, nodes.abs(), 0)[0]
        whole = float(sizes.sum())
        share = float(sizes[nodes[0] < 0].sum()) / whole if whole else 0.0
        return ShareEstimate.exactly(share, spectrum.probes, spectrum.method)
    least, most = spectrum._share_bounds(nodes.new_tensor([math.nextafter(-threshold, -math.inf), threshold]))
    low, high = shortfall_bounds(nodes, weights, spectrum._residuals, -threshold)
    ends, left = (low + threshold * least[:, 0], high + threshold * most[:, 0]), threshold * (most[:, 1] - least[:, 0])
    trace = (weights * nodes).sum(1)
    lower, upper = ([_ratio(a, (a + trace + side * left).clamp_min(0), spectrum) for a in ends] for side in (1, -1))
    middle = (ends[0] + ends[1]) / 2
    whole = float((2 * middle + trace).mean())
    value = float(middle.mean()) / whole if whole > 0 else 0.0
    spread = (middle - value * (2 * middle + trace)) / whole if whole > 0 else torch.zeros_like(middle)
    stderr = Estimate.from_samples(spread, spectrum.probes, spectrum.seed, spectrum.method).stderr
    drawn = spectrum.probes, spectrum.seed, spectrum.method, spectrum.probes - 1
    return CurvatureShare(min(max(value, 0.0), 1.0), stderr, *drawn, least=tuple(lower), most=tuple(upper))


def _ratio(a: Float[Tensor, "probes"], b: Float[Tensor, "probes"], spectrum: SpectralDensity) -> Estimate:
    """The ratio of two means of squared lengths; 0, infinite or, of nothing over nothing, 0 without an interval."""
    below, above = float(a.mean()), float(b.mean())
    if below == 0 or above == 0:
        return Estimate(math.inf if below else 0.0, 0.0, spectrum.probes, spectrum.seed, spectrum.method)
    norms = [norm_from_lengths(t.sqrt(), seed=spectrum.seed) for t in (a, b)]
    return PowerProduct.of(below / above, [(norms[0], 2), (norms[1], -2)])
