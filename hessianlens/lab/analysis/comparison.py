"""How measured growth curves compare with published ones, point by point and series by series.

Standard errors are over draws of weights and embeddings. The batch of sequences is one draw, of which they know
nothing: only measurements on the published batch are compared. Another kind of batch moves whole curves (with carry
chains query norms by 4 to 12 %, linear chains by 5 to 10 %).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hessianlens.lab.analysis.reference import PublishedPoint, Reference, published_key
from hessianlens.lab.analysis.series import Series, SeriesKey, growth_series
from hessianlens.lab.results import Result

FLOOR_FACTOR = 10.0
"""A published mean this many times above ours, with all at smaller sigma too, sits on a noise floor."""


@dataclass(frozen=True)
class ComparedPoint:
    """One sigma: ours and theirs.

    Attributes:
        sigma: Of the published point.
        ours: Our mean over repeats.
        theirs: The published mean.
        z: Difference over the root of both squared standard errors; 0 where both are exactly equal, infinite where they
            differ and neither has an error.
        flag: "" for a sound published point; "not finite", "partly zero" or "noise floor" otherwise.
    """

    sigma: float
    ours: float
    theirs: float
    z: float
    flag: str


@dataclass(frozen=True)
class SeriesComparison:
    """One series against its published curve.

    Attributes:
        experiment: Name of the experiment.
        series: Which norm.
        points: Every sigma that both have.
    """

    experiment: str
    series: SeriesKey
    points: tuple[ComparedPoint, ...]

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
        return float(np.mean([abs(point.z) <= limit for point in self.sound])) if self.sound else math.nan

    @property
    def ratio(self) -> float:
        """Geometric mean of ours over theirs; 1 for two curves that are exactly zero."""
        pairs = [(point.ours, point.theirs) for point in self.sound]
        if all(ours == theirs == 0 for ours, theirs in pairs):
            return 1.0 if pairs else math.nan
        logs = [math.log(ours / theirs) for ours, theirs in pairs if ours > 0 and theirs > 0]
        return math.exp(float(np.mean(logs))) if logs else math.nan


def compare(result: Result, reference: Reference) -> list[SeriesComparison]:
    """Every series that was published at the same size, at the sigma both have; empty where there is none."""
    found = []
    for key, series in growth_series(result).items():
        place = published_key(result.config, key.depth, key.layer, key.block, key.part)
        points = _points(series, reference.get(place, ())) if place is not None else ()
        if points:
            found.append(SeriesComparison(result.experiment, key, points))
    return found


def _points(series: Series, published: tuple[PublishedPoint, ...]) -> tuple[ComparedPoint, ...]:
    found = []
    floor = True
    mean, stderr = series.mean, series.stderr
    for point in published:
        at = np.flatnonzero(np.isclose(series.sigma, point.sigma, rtol=1e-6, atol=0))
        if len(at) == 0:
            continue
        ours, error = float(mean[at[0]]), float(stderr[at[0]])
        floor = floor and point.mean > FLOOR_FACTOR * ours
        found.append(ComparedPoint(point.sigma, ours, point.mean, _z(ours, error, point), _flag(point, floor)))
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
