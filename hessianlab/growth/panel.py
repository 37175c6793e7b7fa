"""One panel of a growth figure: norms against sigma, fitted and predicted slopes, published means, and its labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hessianlab.growth.comparison import ComparedPoint, SeriesComparison, agreement_in_words
from hessianlab.growth.exponents import ExponentFit, FitRange
from hessianlab.growth.layout import GrowthPanel, SeriesStyle
from hessianlab.growth.series import GrowthSeries, Prediction, SeriesKey
from hessianlab.plots.style import GRID, INK, MUTED, THICK, log_axis
from hessianlab.results import Result
from hessianlab.wording import scientific


def reported_fits(fits: Sequence[ExponentFit]) -> list[ExponentFit]:
    """The fits of one series worth telling.

    Where all predictions are alike, the sharpest fit that has one; where they differ by range, each range; without any
    prediction, the first.
    """
    predicted = [fit for fit in fits if fit.predicted is not None]
    if not predicted:
        return list(fits[:1])
    if len({fit.predicted for fit in predicted}) == 1:
        return [min(predicted, key=_width)]
    return predicted


def _width(fit: ExponentFit) -> float:
    return float("inf") if fit.low is None or fit.high is None else fit.high - fit.low


def label(name: str, fits: Sequence[ExponentFit], vanishes: bool) -> str:
    """Name of a line with its exponents and what was predicted."""
    if vanishes:
        return f"{name}: exactly zero"
    return f"{name}: {', then '.join(_exponent(fit) for fit in fits)}" if fits else name


def _exponent(fit: ExponentFit) -> str:
    if fit.measured is None:
        return "not fitted"
    if fit.low is None or fit.high is None:
        text = f"{fit.measured:.2f}"
    else:
        text = _with_half_width(fit.measured, (fit.high - fit.low) / 2)
    return (text + _prediction(fit.predicted)).replace("-", "−")


def _with_half_width(value: float, half: float) -> str:
    """Both with decimals up to the first digit of the half-width, at most three.

    >>> _with_half_width(5.0312, 0.0312), _with_half_width(53.91, 3.6), _with_half_width(2.0, 0.0)
    ('5.03 ± 0.03', '54 ± 4', '2.000 ± 0.000')
    """
    decimals = 3 if half <= 0 else min(3, max(0, -math.floor(math.log10(half))))
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def _prediction(predicted: Prediction) -> str:
    if predicted is None:
        return " (none)"
    return f" ({predicted if predicted != 'zero' else 'zero expected'})"


HOW_TO_READ = (
    "Lines: mean over draws of weights and embeddings; dots: their median, which a few large draws do not move; bands: "
    "smallest to largest draw. Behind a name: the fitted exponent with half its 95% interval over the draws, and the "
    "predicted one in brackets, or that there is none for this range; two exponents are those at small and at large σ. "
    "Dashes: the predicted power, carried on beyond its range; the range of a fit is shaded unless it is all; the "
    "thin upright line stands at σ = 1."
)
"""What is the same in every growth figure."""


def caption(result: Result, fits: Sequence[ExponentFit], compared: Sequence[SeriesComparison] = ()) -> str:
    """Sizes, ranges and published means of this result; `HOW_TO_READ` has what is common to all."""
    config = result.config
    by_series = {fit.series: [other for other in fits if other.series == fit.series] for fit in fits}
    shown = [fit for own in by_series.values() for fit in reported_fits(own) if fit.measured is not None]
    ranges = dict.fromkeys(fit.range for fit in shown)
    spans = "; ".join(f"{where.name}, {where.in_words()}" for where in ranges)
    sentences = [
        f"Width {config['d_model']}, {config['sequences']} sequences, {config['repeats']} draws.",
        f"Fitted for σ in: {spans}." if spans else "",
        *_published(compared),
    ]
    return " ".join(filter(None, sentences))


def _published(compared: Sequence[SeriesComparison]) -> list[str]:
    agreement = agreement_in_words(compared)
    if not agreement:
        return []
    left_out = sum(found.left_out for found in compared)
    crosses = f" (crosses: {left_out} left out as rounding noise or not finite)" if left_out else ""
    return [
        f"Circles: published means{crosses}; below, our mean over the published one with the standard error of both, "
        "and for each line the ratio over all σ.",
        agreement,
    ]


_DASHES, _DOTS = (0, (4, 3)), (0, (1, 1.2))
_LEGEND_LINE = 0.058
"""Share of a panel's height that a line of the legend takes."""

_FEW_POWERS, _TICKS = 30, (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""An axis this short has too few whole powers of ten for its labels."""


def draw_panel(
    axes: Axes,
    panel: GrowthPanel,
    series: Mapping[SeriesKey, GrowthSeries],
    fits: Sequence[ExponentFit],
    compared: Mapping[SeriesKey, SeriesComparison],
    linear: bool,
) -> None:
    """Every line of a panel.

    A line is the mean over repeats, dots are the median, the band reaches from the smallest to the largest repeat.
    Dashes have the predicted slope, through the mean of the range it was fitted in (shaded). A thin line stands at
    sigma = 1. Open circles in the colour of the line are published means, crosses those that are not sound.
    """
    shaded: dict[FitRange, None] = {}
    for line in panel.lines:
        own = reported_fits([fit for fit in fits if fit.series == line.key])
        _draw_curve(axes, line, series[line.key], label(line.name, own, bool(series[line.key].vanishes)))
        if not series[line.key].vanishes:
            shaded |= {fit.range: None for fit in own if fit.measured is not None and fit.range.name != "all"}
    for line in panel.lines:
        if line.key in compared:
            _draw_published(axes, compared[line.key], line.colour)
    _explain_published(axes, [compared[line.key] for line in panel.lines if line.key in compared])
    _frame(axes, panel, [series[line.key] for line in panel.lines], linear)
    for line in panel.lines:
        _draw_guides(axes, line.key, series, fits)
    left, right = axes.get_xlim()
    if left < 1 < right:
        axes.axvline(1, color=MUTED, linewidth=0.8, zorder=0.5)
    for where in shaded:
        axes.axvspan(max(where.low, left), min(where.high, right), color=GRID, alpha=0.5, linewidth=0, zorder=0)


def _draw_curve(axes: Axes, line: SeriesStyle, curve: GrowthSeries, text: str) -> None:
    if curve.vanishes:
        axes.plot([], [], linestyle="none", label=text)
        return
    pale = 0.4 if line.width >= THICK else 1.0
    style: Any = {"color": line.colour, "linewidth": line.width, "markersize": 3.5, "alpha": pale}
    axes.plot(curve.sigma, _drawable(curve.mean), line.marker, label=text, **style)
    axes.plot(curve.sigma, _drawable(curve.median), color=line.colour, linestyle=_DOTS, linewidth=1.6, zorder=2.5)
    axes.fill_between(
        curve.sigma, _drawable(curve.lowest), _drawable(curve.highest), color=line.colour, alpha=0.18, lw=0
    )


def _drawable(values: np.ndarray) -> np.ndarray:
    """Zeros and what is not finite leave a gap."""
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _draw_published(axes: Axes, found: SeriesComparison, colour: str) -> None:
    for marker, sound in _MARKERS.items():
        chosen = _positive(found, sound)
        if chosen:
            where, means = ([getattr(p, name) for p in chosen] for name in ("sigma", "theirs"))
            style: Any = {"markersize": 7, "markerfacecolor": "none", "markeredgecolor": colour, "markeredgewidth": 1.1}
            axes.plot(where, means, marker, zorder=4, **style)


_MARKERS = {"o": True, "x": False}
"""Whether what is drawn so is sound."""


def _positive(found: SeriesComparison, sound: bool) -> list[ComparedPoint]:
    return [p for p in found.points if (p.flag == "") == sound and p.theirs > 0 and np.isfinite(p.theirs)]


def _explain_published(axes: Axes, compared: Sequence[SeriesComparison]) -> None:
    """Entries of the legend that hold for every line."""
    for marker, sound in _MARKERS.items():
        if any(_positive(found, sound) for found in compared):
            name = "published" if sound else "published, not sound"
            axes.plot([], [], marker, color=INK, markerfacecolor="none", markersize=6, label=name)


def _draw_guides(
    axes: Axes, key: SeriesKey, series: Mapping[SeriesKey, GrowthSeries], fits: Sequence[ExponentFit]
) -> None:
    """The predicted slopes: each in its own range, or across the panel where every range says the same.

    A grid that starts above the range of the prediction gets the law of the first grid, carried on.
    """
    for grid in dict.fromkeys((key.grid, 0)):
        source = key._replace(grid=grid)
        chosen = reported_fits([fit for fit in fits if fit.series == source])
        laws = [(fit.predicted, fit.range) for fit in chosen if isinstance(fit.predicted, int)]
        if laws:
            break
    left, right = axes.get_xlim()
    for power, where in laws:
        low, high = (left, right) if len(laws) == 1 else (where.low / 1.4, where.high * 1.4)
        sigma = np.linspace(max(low, left), min(high, right), 2000)[1:]
        values = _amplitude(series[source], where, power) * sigma**power
        axes.plot(sigma, values, color=INK, linestyle=_DASHES, linewidth=0.9, zorder=3)


def _amplitude(series: GrowthSeries, where: FitRange, power: int) -> float:
    """The factor of the predicted power that fits the mean in the range best, in log."""
    inside = where.holds(series.sigma) & np.isfinite(_drawable(series.mean))
    return float(np.exp(np.mean(np.log(series.mean[inside]) - power * np.log(series.sigma[inside]))))


def _frame(axes: Axes, panel: GrowthPanel, curves: Sequence[GrowthSeries], linear: bool) -> None:
    """Limits from the data with room for the legend, in the corner the curves leave free; titles and axis labels."""
    seen = [curve for curve in curves if np.isfinite(_drawable(curve.highest)).any()]
    falling = bool(seen and seen[0].mean[-1] < seen[0].mean[0])
    sigma = curves[0].sigma
    axes.set_title(panel.title)
    if linear:
        axes.set_xlim(0, float(sigma[-1]) * 1.02)
    else:
        axes.set_xlim(float(sigma[0]) / 1.05, float(sigma[-1]) * 1.05)
        log_axis(axes, "x")
        if sigma[-1] / sigma[0] < _FEW_POWERS:
            axes.set_xticks([tick for tick in _TICKS if sigma[0] / 1.05 <= tick <= sigma[-1] * 1.05])
            axes.xaxis.set_major_formatter("{x:g}")
    if seen:
        low = min(float(np.nanmin(_drawable(curve.lowest))) for curve in seen)
        high = max(float(np.nanmax(_drawable(curve.highest))) for curve in seen)
        _heights(axes, low, high, linear, falling)
    else:
        axes.set_yticks([])
        axes.text(0.5, 0.5, "exactly zero", transform=axes.transAxes, ha="center", va="center", color=MUTED)
    legend = axes.legend(
        loc="lower left" if falling else "upper left",
        title="fitted exponent (predicted)",
        fontsize=9,
        title_fontsize=9,
        handlelength=1.6,
        borderaxespad=0.2,
        alignment="left",
    )
    legend.get_title().set_color(MUTED)


def _tick(value: float) -> str:
    """A number on a linear axis; large and small ones by a power of ten.

    >>> _tick(0.5), _tick(125000.0)
    ('0.5', '1.2 × 10⁵')
    """
    return f"{value:g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else scientific(value)


def _heights(axes: Axes, low: float, high: float, linear: bool, falling: bool) -> None:
    free = _LEGEND_LINE * (len(axes.get_legend_handles_labels()[1]) + 1.5)
    if linear:
        axes.set_ylim(0, high / (1 - free))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
        return
    room = 1.5 * (high / low) ** (free / (1 - free))
    axes.set_ylim(low / (room if falling else 1.5), high * (1.5 if falling else room))
    log_axis(axes, "y")
