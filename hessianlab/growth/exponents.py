"""Exponents of growth: fitted in every repeat, with an interval over the repeats, against predictions, and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hessianlab.experiments.statistics import mean_interval
from hessianlab.growth.comparison import SeriesComparison, compare
from hessianlab.growth.reference import Reference
from hessianlab.growth.series import (
    GrowthSeries,
    Prediction,
    SeriesKey,
    counted_exponent,
    growth_series,
    published_exponent,
)
from hessianlab.results import Findings, Result, Scalar
from hessianlab.wording import MINUS, short
from hessianlens.parts import LAYER_PARTS

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

    def in_words(self) -> str:
        """Both ends; a range that begins at zero begins with the smallest measured sigma."""
        return f"{self.low:g} to {self.high:g}" if self.low else f"up to {self.high:g}"


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

    @property
    def power(self) -> str:
        """The exponent as text: "zero" for norms that vanish."""
        return "zero" if self.measured is None else f"{self.measured:.2f}".replace("-", MINUS)

    @property
    def interval(self) -> str:
        """Both ends of the interval as text; empty if there is none."""
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.2f} to {self.high:.2f}".replace("-", MINUS)


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
    return Slope(mean, *mean_interval(slopes, LEVEL), len(slopes), left_out)


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
            ours, theirs = (rule(result.config, key, where.name) for rule in (counted_exponent, published_exponent))
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


_MOST = 6
"""Disagreements listed one by one; more are counted."""

_LOPSIDED = 3.0
"""From this ratio of mean to median on it is reported."""


def growth_sentences(result: Result) -> list[str]:
    """The exponents of the top layer, which predictions agree, and the ratio of the value to the query block.

    >>> from hessianlab.figures.growth import FIG8
    >>> result = FIG8.run(FIG8.preset("quick", {"layers": (2,), "d_model": 4, "repeats": 3}))
    >>> growth_sentences(result)[1]
    'Predicted by counting powers of σ: 2 of 2 exponents agree.'
    """
    fits = exponent_fits(result)
    attention = any(fit.series.block == "query" for fit in fits)
    found = [
        _exponents(fits) if attention else _span(fits),
        _agreement("Predicted by counting powers of σ", fits, lambda fit: (fit.predicted, fit.agrees)),
        _agreement("Drawn or stated in the paper", fits, lambda fit: (fit.paper, fit.paper_agrees)),
        _ratio(result) if attention else "",
        _due_to_one_seed(result),
    ]
    return [sentence for sentence in found if sentence]


def _span(fits: Sequence[ExponentFit]) -> str:
    measured = [fit.measured for fit in fits if fit.measured is not None]
    low, high = min(measured), max(measured)
    return f"The {len(measured)} exponents of all depths and layers lie between {low:.3f} and {high:.3f}."


def _agreement(
    who: str, fits: Sequence[ExponentFit], read: Callable[[ExponentFit], tuple[Prediction, bool | None]]
) -> str:
    said = [(fit, *read(fit)) for fit in fits if read(fit)[0] is not None]
    if not said:
        return ""
    agree, unclear, wrong = ([entry for entry in said if entry[2] is verdict] for verdict in (True, None, False))
    text = f"{who}: {len(agree)} of {len(said)} exponents agree"
    if unclear:
        text += f", {len(unclear)} cannot be decided"
    if not wrong:
        return f"{text}."
    message = "; ".join(
        f"{series_in_words(fit)} for {fit.range.name} σ: {slope_in_words(fit)}, not {predicted}"
        for fit, predicted, _ in wrong[:_MOST]
    )
    more = f"; and {len(wrong) - _MOST} more" if len(wrong) > _MOST else ""
    return f"{text}, {len(wrong)} {'differs' if len(wrong) == 1 else 'differ'} ({message}{more})."


def series_in_words(fit: ExponentFit) -> str:
    """Which series was fitted, as part of a sentence."""
    where = f"layer {fit.series.layer + 1} of {fit.series.depth}, " if fit.series.depth > 1 else ""
    return f"{where}{fit.series.block} {fit.series.part}"


def slope_in_words(fit: ExponentFit) -> str:
    """Its slope with the interval."""
    if fit.measured is None:
        return "vanishes"
    if fit.low is None or fit.high is None:
        return f"{fit.measured:.2f}"
    return f"{fit.measured:.2f} ({fit.low:.2f} to {fit.high:.2f})"


def _exponents(fits: Sequence[ExponentFit]) -> str:
    """The exponents of the top layer of the shallowest model, in the first range."""
    depth = min(fit.series.depth for fit in fits)
    top = [fit for fit in fits if fit.series.depth == depth and fit.series.last and fit.series.grid == 0]
    name = top[0].range.name
    powers = []
    for block in ("query", "value"):
        of = {fit.series.part: fit for fit in top if fit.series.block == block and fit.range.name == name}
        powers.append(f"{block} block " + ", ".join(f"{of[part].power} ({part})" for part in LAYER_PARTS if part in of))
    where = "" if depth == 1 and all(fit.series.depth == 1 for fit in fits) else f" in the top layer of depth {depth}"
    return f"Exponents at {name} σ{where}: {'; '.join(powers)}."


def _ratio(result: Result) -> str:
    series = growth_series(result)
    depth = min(key.depth for key in series)
    if any(SeriesKey(0, depth, depth - 1, block, "full") not in series for block in ("query", "value")):
        return ""
    query, value = (series[SeriesKey(0, depth, depth - 1, block, "full")] for block in ("query", "value"))
    ratio = value.mean / query.mean
    ends = [int(np.argmin(query.sigma)), int(np.argmax(query.sigma))]
    low, high = (f"{short(float(ratio[k]))} times at σ = {short(float(query.sigma[k]))}" for k in ends)
    return f"The norm of the value block is {low} and {high} that of the query block."


def _due_to_one_seed(result: Result) -> str:
    """Where the mean over draws is far above their median, and by how much at most."""
    worst = (1.0, "", 0.0)
    for key, series in growth_series(result).items():
        if series.vanishes is False:
            excess = np.where(series.median > 0, series.mean / np.where(series.median > 0, series.median, 1.0), np.nan)
            if np.isfinite(excess).any():
                at = int(np.nanargmax(excess))
                where = f"layer {key.layer + 1} of {key.depth}, " if key.depth > 1 else ""
                worst = max(worst, (float(excess[at]), f"{where}{key.block} {key.part}", float(series.sigma[at])))
    factor, name, sigma = worst
    if factor < _LOPSIDED:
        return ""
    return (
        f"Means over draws are up to {short(factor)} times the median ({name}, σ = {short(sigma)}): there a few draws "
        "carry the mean, and the median shows what is typical."
    )


@dataclass(frozen=True)
class GrowthFindings(Findings):
    """Findings of a figure of growth, which has exponents and may have been published."""

    def exponents(self, result: Result) -> list[ExponentFit]:
        """Every fitted exponent."""
        return exponent_fits(result)

    def compared(self, result: Result, reference: Reference | None) -> list[SeriesComparison]:
        """Every series that `reference` has at the same size and on the same batch."""
        return [] if reference is None else compare(result, reference)
