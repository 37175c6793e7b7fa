"""Exponents of growth: fitted in every repeat, with an interval over the repeats, against what was predicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from hessianlab.growth.series import GrowthSeries, Prediction, SeriesKey, counted, growth_series, published
from hessianlab.results import Result, Scalar

LEVEL = 0.95
TOLERANCE = 0.1
"""By how much the interval is widened on both sides: at finite sigma the next power still bends the slope a little."""

WIDEST = (0.5, 0.1)
"""An interval that holds the prediction decides for it only if its half-width is at most 0.5, or a tenth of the
prediction; a wider one decides nothing."""

LEAST_POINTS = 3
"""Fewer values of sigma in a range are no fit."""


class FitRange(NamedTuple):
    """Where an exponent is fitted: from `low` to `high`, both included."""

    name: str
    low: float
    high: float

    def holds(self, sigma: np.ndarray) -> np.ndarray:
        """Which sigma lie inside; the ends count up to rounding."""
        inside: np.ndarray = (sigma >= self.low * (1 - 1e-9)) & (sigma <= self.high * (1 + 1e-9))
        return inside


class Slope(NamedTuple):
    """Mean slope over the repeats with its interval.

    Attributes:
        measured: The mean; None if no repeat could be fitted.
        low: Lower end of the interval; None with fewer than two fitted repeats.
        high: Upper end.
        repeats: Repeats that were fitted.
        left_out: Values left out because they are zero or not finite.
    """

    measured: float | None
    low: float | None
    high: float | None
    repeats: int
    left_out: int


@dataclass(frozen=True)
class ExponentFit:
    """One series in one range.

    Attributes:
        experiment: Name of the experiment.
        series: Which norm.
        range: Where it was fitted.
        points: Values of sigma in the range.
        measured: Mean over repeats of d log(norm) / d log(sigma); None if the norms vanish.
        low: Lower end of the 95 % interval of the mean (Student's t over repeats); None with fewer than two repeats.
        high: Upper end.
        repeats: Repeats that were fitted.
        left_out: Values left out because they are zero or not finite.
        predicted: What counting powers gives.
        paper: What the paper draws or states.
        agrees: Whether `predicted` agrees, see `agreement`; None without prediction or where the data do not decide.
        paper_agrees: The same of `paper`.
    """

    experiment: str
    series: SeriesKey
    range: FitRange
    points: int
    measured: float | None
    low: float | None
    high: float | None
    repeats: int
    left_out: int
    predicted: Prediction
    paper: Prediction
    agrees: bool | None
    paper_agrees: bool | None


def fit_slope(series: GrowthSeries, where: FitRange) -> Slope:
    """One least-squares slope in log-log a repeat; their mean and Student's 95 % interval."""
    inside = where.holds(series.sigma)
    sigma, values = series.sigma[inside], series.values[:, inside]
    usable = np.isfinite(values) & (values > 0)
    slopes = np.array(
        [
            np.polyfit(np.log(sigma[kept]), np.log(row[kept]), 1)[0]
            for row, kept in zip(values, usable, strict=True)
            if kept.sum() >= LEAST_POINTS
        ]
    )
    left_out = int((~usable).sum())
    if len(slopes) == 0:
        return Slope(None, None, None, 0, left_out)
    mean = float(slopes.mean())
    if len(slopes) < 2:
        return Slope(mean, None, None, 1, left_out)
    half = float(stdtrit(len(slopes) - 1, 0.5 + LEVEL / 2) * slopes.std(ddof=1) / np.sqrt(len(slopes)))
    return Slope(mean, mean - half, mean + half, len(slopes), left_out)


def agreement(slope: Slope, vanishes: bool | None, prediction: Prediction) -> bool | None:
    """Whether a prediction agrees: it lies in the interval widened by 0.1, or both say that the block is zero.

    None if nothing was predicted, if the interval holds the prediction but is too wide to decide, or if all that is
    known of a block is zero but some of it is not known.

    >>> slope = Slope(5.02, 4.98, 5.06, repeats=20, left_out=0)
    >>> [agreement(slope, False, p) for p in (5, 6, "zero", None)]
    [True, False, False, None]
    >>> vague = Slope(3.2, 0.9, 5.5, repeats=5, left_out=0)
    >>> [agreement(vague, False, p) for p in (5, 6)]
    [None, False]
    >>> [agreement(Slope(p, p - 1.5, p + 1.5, repeats=5, left_out=0), False, p) for p in (18, 6)]
    [True, None]
    >>> [agreement(Slope(None, None, None, repeats=0, left_out=9), v, "zero") for v in (True, False, None)]
    [True, False, None]
    """
    if prediction is None:
        return None
    if prediction == "zero":
        return vanishes
    if vanishes:
        return False
    if slope.low is None or slope.high is None:
        return None
    if not slope.low - TOLERANCE <= prediction <= slope.high + TOLERANCE:
        return False
    widest = max(WIDEST[0], WIDEST[1] * abs(prediction))
    return True if slope.high - slope.low <= 2 * widest else None


def exponent_fits(result: Result) -> list[ExponentFit]:
    """Every series of a growth experiment in every range of its configuration that holds three sigma or more.

    >>> from hessianlab.figures.growth import FIG8
    >>> result = FIG8.run(FIG8.preset("quick", {"layers": (1,), "d_model": 4, "repeats": 3}))
    >>> [(fit.range.name, fit.predicted, fit.agrees) for fit in exponent_fits(result)]
    [('all', 2, True)]
    """
    ranges = [FitRange(*given) for given in result.config["fit_ranges"]]
    found = []
    for key, series in growth_series(result).items():
        for where in ranges:
            points = int(where.holds(series.sigma).sum())
            if points < LEAST_POINTS:
                continue
            slope = fit_slope(series, where)
            ours, theirs = (rule(result.config, key, where.name) for rule in (counted, published))
            agrees, paper_agrees = (agreement(slope, series.vanishes, prediction) for prediction in (ours, theirs))
            found.append(ExponentFit(result.experiment, key, where, points, *slope, ours, theirs, agrees, paper_agrees))
    return found


def exponent_table(results: Iterable[Result]) -> list[dict[str, Scalar]]:
    """All fits of several experiments as rows of a table, in the words of `ExponentFit`; layers count from 0."""
    return [_row(fit) for result in results for fit in exponent_fits(result)]


def _row(fit: ExponentFit) -> dict[str, Scalar]:
    return {
        "experiment": fit.experiment,
        **fit.series._asdict(),
        "range": fit.range.name,
        "sigma_from": fit.range.low,
        "sigma_to": fit.range.high,
        "points": fit.points,
        "repeats": fit.repeats,
        "left_out": fit.left_out,
        "measured": fit.measured,
        "low": fit.low,
        "high": fit.high,
        "predicted": fit.predicted,
        "agrees": fit.agrees,
        "paper": fit.paper,
        "paper_agrees": fit.paper_agrees,
    }
