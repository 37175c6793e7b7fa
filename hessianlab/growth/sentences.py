"""Growth results in sentences: exponents, and what was predicted for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hessianlab.growth.comparison import SeriesComparison, compare
from hessianlab.growth.exponents import ExponentFit, exponent_fits
from hessianlab.growth.reference import Reference
from hessianlab.growth.series import Prediction, SeriesKey, growth_series
from hessianlab.results import Findings, Result
from hessianlab.wording import short
from hessianlens.parts import LAYER_PARTS

_MOST = 6
"""Disagreements told one by one; more are counted."""

_LOPSIDED = 3.0
"""From this ratio of mean to median on it is told."""


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
        _carried_by_one_draw(result),
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
    told = "; ".join(
        f"{series_in_words(fit)} for {fit.range.name} σ: {slope_in_words(fit)}, not {predicted}"
        for fit, predicted, _ in wrong[:_MOST]
    )
    more = f"; and {len(wrong) - _MOST} more" if len(wrong) > _MOST else ""
    return f"{text}, {len(wrong)} {'differs' if len(wrong) == 1 else 'differ'} ({told}{more})."


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
    told = []
    for block in ("query", "value"):
        of = {fit.series.part: fit for fit in top if fit.series.block == block and fit.range.name == name}
        told.append(
            f"{block} block " + ", ".join(f"{_fit_in_words(of[part])} ({part})" for part in LAYER_PARTS if part in of)
        )
    where = "" if depth == 1 and all(fit.series.depth == 1 for fit in fits) else f" in the top layer of depth {depth}"
    return f"Exponents at {name} σ{where}: {'; '.join(told)}."


def _fit_in_words(fit: ExponentFit) -> str:
    return "zero" if fit.measured is None else f"{fit.measured:.2f}".replace("-", "−")


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


def _carried_by_one_draw(result: Result) -> str:
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
        "carry the mean, and the median tells what is typical."
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
