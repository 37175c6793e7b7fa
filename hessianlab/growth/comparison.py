"""How measured growth curves compare with published ones, point by point and series by series.

Standard errors are over draws of weights and embeddings. The batch of sequences is one draw, of which they know
nothing: only measurements on the published batch are compared. Another kind of batch moves whole curves (with carry
chains query norms by 4 to 12 %, linear chains by 5 to 10 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hessianlab.growth.reference import PublishedPoint, Reference, published_key
from hessianlab.growth.series import GrowthSeries, SeriesKey, growth_series
from hessianlab.results import Result, Scalar
from hessianlab.wording import percent

FLOOR_FACTOR = 10.0
"""A published mean this many times above ours, with all at smaller sigma too, sits on a noise floor."""


@dataclass(frozen=True)
class ComparedPoint:
    """One sigma: ours and theirs.

    Attributes:
        sigma: Of the published point.
        ours: Our mean over repeats.
        theirs: The published mean.
        error: Standard error of ours; NaN for a single repeat.
        published_error: Standard error of theirs.
        z: Difference over the root of both squared standard errors; 0 where both are exactly equal, infinite where they
            differ and neither has an error.
        flag: "" for a sound published point; "not finite", "partly zero" or "noise floor" otherwise.
    """

    sigma: float
    ours: float
    theirs: float
    error: float
    published_error: float
    z: float
    flag: str

    @property
    def relative_error(self) -> float:
        """Standard error of ours over theirs, in units of that ratio; an unknown error counts as none."""
        own = 0.0 if math.isnan(self.error) else self.error
        return math.hypot(own / self.ours, self.published_error / self.theirs)


@dataclass(frozen=True)
class SeriesComparison:
    """One series against its published curve.

    Attributes:
        experiment: Name of the experiment.
        series: Which norm.
        points: Every sigma that both have.
        ratio: Ours over theirs: the geometric mean over sigma, each point weighted by the inverse of its relative
            error (its square would trust lucky points too much); 1 for two curves that are exactly zero, NaN without a
            sound point.
        ratio_error: Standard error of the ratio. A repeat has the same weights at every sigma, so that its points hang
            together: ours is the error over repeats of each repeat's weighted mean, and published errors, of which
            only those of single points are known, are taken to hang together as ours do. NaN for a single repeat.
    """

    experiment: str
    series: SeriesKey
    points: tuple[ComparedPoint, ...]
    ratio: float
    ratio_error: float

    @property
    def sound(self) -> tuple[ComparedPoint, ...]:
        """Points without a flag; only they count below."""
        return tuple(point for point in self.points if not point.flag)

    @property
    def median_z(self) -> float:
        """Median of |z|; 0.67 if nothing but chance is at work."""
        return float(np.median([abs(point.z) for point in self.sound])) if self.sound else math.nan

    def share_within(self, limit: float) -> float:
        """Share of points with |z| up to `limit`."""
        return share_within([self], limit)

    @property
    def left_out(self) -> int:
        """Points that do not count."""
        return len(self.points) - len(self.sound)

    def in_words(self) -> dict[str, str]:
        """A row of the table that readers see; dashes where no point is sound."""
        numbers = {
            "ratio": self.ratio_in_words(),
            "median_z": f"{self.median_z:.1f}",
            "within_2": percent(self.share_within(2)),
            "within_3": percent(self.share_within(3)),
        }
        shown = numbers if self.sound else dict.fromkeys(numbers, "\N{EN DASH}")
        points, noise = str(len(self.sound)), str(self.left_out)
        return {"series": self.series.in_words(), "points": points, "noise": noise, **shown}

    def in_numbers(self) -> dict[str, Scalar]:
        """A row for machines; None where a number is not known."""
        return {
            **self.series._asdict(),
            "ratio": _known(self.ratio),
            "ratio_error": _known(self.ratio_error),
            "median_z": _known(self.median_z),
            **agreement_in_numbers([self]),
        }

    def ratio_in_words(self) -> str:
        """The ratio with its standard error, both to the same digit."""
        if math.isnan(self.ratio_error) or self.ratio_error == 0:
            return f"{self.ratio:.3g}"
        decimals = min(3, max(0, 1 - math.floor(math.log10(self.ratio_error))))
        return f"{self.ratio:.{decimals}f} ± {self.ratio_error:.{decimals}f}"


def compare(result: Result, reference: Reference) -> list[SeriesComparison]:
    """Every series that was published at the same size, at the sigma both have; empty where there is none."""
    found = []
    for key, series in growth_series(result).items():
        place = published_key(result.config, key.depth, key.layer, key.block, key.part)
        points = _points(series, reference.get(place, ())) if place is not None else ()
        if points:
            found.append(SeriesComparison(result.experiment, key, points, *series_ratio(series, points)))
    return found


def series_ratio(series: GrowthSeries, points: Sequence[ComparedPoint]) -> tuple[float, float]:
    """The ratio of a whole series and its standard error, as `SeriesComparison` has them."""
    sound = [point for point in points if not point.flag]
    if sound and all(point.ours == point.theirs == 0 for point in sound):
        return 1.0, 0.0
    both = [point for point in sound if point.ours > 0 and point.theirs > 0]
    if not both:
        return math.nan, math.nan
    errors = np.array([point.relative_error for point in both])
    weights = 1 / errors if (errors > 0).all() else np.ones(len(both))
    weights = weights / weights.sum()
    ratio = math.exp(float(weights @ np.log([point.ours / point.theirs for point in both])))
    at = [int(np.argmin(np.abs(series.sigma - point.sigma))) for point in both]
    shares = (series.values[:, at] / series.mean[at]) @ weights
    if len(shares) < 2:
        return ratio, math.nan
    own = float(shares.std(ddof=1)) / math.sqrt(len(shares))
    ours, theirs = (
        weights @ np.square([getattr(point, error) / getattr(point, mean) for point in both])
        for error, mean in (("error", "ours"), ("published_error", "theirs"))
    )
    published = own * math.sqrt(theirs / ours) if ours > 0 else math.sqrt(theirs)
    return ratio, ratio * math.hypot(own, published)


def _points(series: GrowthSeries, published: tuple[PublishedPoint, ...]) -> tuple[ComparedPoint, ...]:
    found = []
    floor = True
    mean, stderr = series.mean, series.stderr
    for point in published:
        at = np.flatnonzero(np.isclose(series.sigma, point.sigma, rtol=1e-6, atol=0))
        if len(at) == 0:
            continue
        ours, error = float(mean[at[0]]), float(stderr[at[0]])
        floor = floor and point.mean > FLOOR_FACTOR * ours
        z, flag = _z(ours, error, point), _flag(point, floor)
        found.append(ComparedPoint(point.sigma, ours, point.mean, error, point.sem, z, flag))
    return tuple(found)


def _flag(point: PublishedPoint, floor: bool) -> str:
    if point.nonfinite > 0 or not math.isfinite(point.mean):
        return "not finite"
    if 0 < point.zeros < point.repeats:
        return "partly zero"
    return "noise floor" if floor else ""


def _z(ours: float, error: float, point: PublishedPoint) -> float:
    difference = ours - point.mean
    if difference == 0:
        return 0.0
    both = math.hypot(0.0 if math.isnan(error) else error, point.sem)
    return difference / both if both > 0 else math.copysign(math.inf, difference)


def share_within(compared: Iterable[SeriesComparison], limit: float) -> float:
    """Share of all sound points of several series with |z| up to `limit`; NaN if there is none."""
    found = [abs(point.z) <= limit for series in compared for point in series.sound]
    return float(np.mean(found)) if found else math.nan


def agreement_in_words(compared: Sequence[SeriesComparison]) -> str:
    """How many of all sound points agree, in a sentence; nothing if there is none."""
    points = sum(len(series.sound) for series in compared)
    if points == 0:
        return ""
    within = {limit: percent(share_within(compared, limit)) for limit in (2, 3)}
    return f"Of {points} published points {within[2]} lie within two and {within[3]} within three standard errors."


def agreement_in_numbers(compared: Sequence[SeriesComparison]) -> dict[str, Scalar]:
    """The same for machines: sound points, those left out, and the shares; None if there is no sound point."""
    return {
        "points": sum(len(series.sound) for series in compared),
        "left_out": sum(series.left_out for series in compared),
        "within_2": _known(share_within(compared, 2)),
        "within_3": _known(share_within(compared, 3)),
    }


def _known(number: float) -> float | None:
    """JSON has no word for what is not finite."""
    return number if math.isfinite(number) else None
