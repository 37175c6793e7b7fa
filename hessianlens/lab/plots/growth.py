"""Growth figures: block norms against sigma, fitted exponents, predicted slopes, published means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlens.lab.analysis.comparison import ComparedPoint, compare
from hessianlens.lab.analysis.exponents import ExponentFit, FitRange
from hessianlens.lab.analysis.reference import Reference
from hessianlens.lab.analysis.series import Series, SeriesKey, growth_series
from hessianlens.lab.plots.growth_layout import Panel, layout
from hessianlens.lab.plots.growth_text import label, told
from hessianlens.lab.plots.style import GRID, INK, MUTED, log_axis, panels
from hessianlens.lab.results import Result

_DASHES = (0, (4, 3))
_LEGEND_LINE = 0.058
"""Share of a panel's height that a line of the legend takes."""

_FEW_POWERS, _TICKS = 30, (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""An axis this short has too few whole powers of ten for its labels."""


def draw(result: Result, fits: Sequence[ExponentFit], reference: Reference | None = None) -> Figure:
    """All panels of a growth experiment.

    A line is the mean over repeats, its band reaches from the smallest to the largest repeat. Dashes have the predicted
    slope, through the mean of the range it was fitted in (shaded). Open circles are published means, crosses those that
    are not sound; they are drawn where a reference is given and the measurement has the published size.

    Args:
        result: Of a growth experiment.
        fits: From `exponent_fits`.
        reference: From `read_reference`.
    """
    series = growth_series(result)
    points = {c.series: c.points for c in compare(result, reference)} if reference is not None else {}
    plan = layout(result, series)
    rows, columns = len(plan), max(len(row) for row in plan)
    wide = 4.6 if columns <= 3 else 3.7
    with panels(columns, rows, wide, 3.7) as (figure, every):
        for row, own in enumerate(plan):
            across = every[row * columns : (row + 1) * columns]
            for axes, panel in zip(across, own, strict=False):
                _draw_panel(axes, panel, series, fits, points, linear=result.config["spacing"] == "linear")
            for axes in across[len(own) :]:
                axes.set_axis_off()
        return figure


def _draw_panel(
    axes: Axes,
    panel: Panel,
    series: Mapping[SeriesKey, Series],
    fits: Sequence[ExponentFit],
    points: Mapping[SeriesKey, Sequence[ComparedPoint]],
    linear: bool,
) -> None:
    shaded = set()
    for line in panel.lines:
        own = [fit for fit in fits if fit.series == line.key]
        curve = series[line.key]
        text = label(line.name, told(own), bool(curve.vanishes))
        if curve.vanishes:
            axes.plot([], [], color=line.colour, linestyle=":", label=text)
            continue
        axes.plot(
            curve.sigma,
            _shown(curve.mean),
            line.marker,
            color=line.colour,
            linewidth=line.width,
            markersize=3.5,
            label=text,
        )
        axes.fill_between(curve.sigma, _shown(curve.lowest), _shown(curve.highest), color=line.colour, alpha=0.18, lw=0)
        shaded |= {fit.range for fit in told(own) if fit.predicted is not None and fit.range.name != "all"}
    for line in panel.lines:
        _draw_published(axes, points.get(line.key, ()))
    _frame(axes, panel, [series[line.key] for line in panel.lines], linear)
    for line in panel.lines:
        _draw_guides(axes, line.key, series, fits)
    left, right = axes.get_xlim()
    for where in shaded:
        axes.axvspan(max(where.low, left), min(where.high, right), color=GRID, alpha=0.5, linewidth=0, zorder=0)


def _shown(values: np.ndarray) -> np.ndarray:
    """Zeros and what is not finite leave a gap."""
    return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _draw_published(axes: Axes, points: Sequence[ComparedPoint]) -> None:
    labels = axes.get_legend_handles_labels()[1]
    for marker, name, sound in (("o", "published", True), ("x", "published, not sound", False)):
        chosen = [p for p in points if (p.flag == "") == sound and p.theirs > 0 and np.isfinite(p.theirs)]
        if chosen:
            axes.plot(
                [p.sigma for p in chosen],
                [p.theirs for p in chosen],
                marker,
                markersize=6,
                markerfacecolor="none",
                markeredgecolor=INK,
                markeredgewidth=0.8,
                zorder=4,
                label="_nolegend_" if name in labels else name,
            )


def _draw_guides(axes: Axes, key: SeriesKey, series: Mapping[SeriesKey, Series], fits: Sequence[ExponentFit]) -> None:
    """The predicted slopes: each in its own range, or across the panel where every range says the same.

    A grid that starts above the range of the prediction gets the law of the first grid, carried on.
    """
    for grid in dict.fromkeys((key.grid, 0)):
        source = key._replace(grid=grid)
        chosen = told([fit for fit in fits if fit.series == source])
        laws = [(fit.predicted, fit.range) for fit in chosen if isinstance(fit.predicted, int)]
        if laws:
            break
    left, right = axes.get_xlim()
    for power, where in laws:
        low, high = (left, right) if len(laws) == 1 else (where.low / 1.4, where.high * 1.4)
        sigma = np.linspace(max(low, left), min(high, right), 2000)[1:]
        values = _amplitude(series[source], where, power) * sigma**power
        axes.plot(sigma, values, color=INK, linestyle=_DASHES, linewidth=0.9, zorder=3)


def _amplitude(series: Series, where: FitRange, power: int) -> float:
    """The factor of the predicted power that fits the mean in the range best, in log."""
    inside = where.holds(series.sigma) & np.isfinite(_shown(series.mean))
    return float(np.exp(np.mean(np.log(series.mean[inside]) - power * np.log(series.sigma[inside]))))


def _frame(axes: Axes, panel: Panel, curves: Sequence[Series], linear: bool) -> None:
    """Limits from the data with room for the legend, in the corner the curves leave free; titles and axis labels."""
    seen = [curve for curve in curves if not curve.vanishes]
    low = min(float(np.nanmin(_shown(curve.lowest))) for curve in seen)
    high = max(float(np.nanmax(_shown(curve.highest))) for curve in seen)
    falling = bool(seen[0].mean[-1] < seen[0].mean[0])
    free = _LEGEND_LINE * (len(axes.get_legend_handles_labels()[1]) + 1.5)
    sigma = curves[0].sigma
    if linear:
        axes.set_xlim(0, float(sigma[-1]) * 1.02)
        axes.set_ylim(0, high / (1 - free))
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3), useMathText=True)
    else:
        axes.set_xlim(float(sigma[0]) / 1.05, float(sigma[-1]) * 1.05)
        room = 1.5 * (high / low) ** (free / (1 - free))
        axes.set_ylim(low / (room if falling else 1.5), high * (1.5 if falling else room))
        log_axis(axes, "x")
        log_axis(axes, "y")
        if sigma[-1] / sigma[0] < _FEW_POWERS:
            axes.set_xticks([tick for tick in _TICKS if sigma[0] / 1.05 <= tick <= sigma[-1] * 1.05])
            axes.xaxis.set_major_formatter("{x:g}")
    legend = axes.legend(
        loc="lower left" if falling else "upper left",
        title="fitted exponent (predicted)",
        fontsize=8,
        title_fontsize=8,
        handlelength=1.6,
        borderaxespad=0.2,
        alignment="left",
    )
    legend.get_title().set_color(MUTED)
    axes.set_title(panel.title)
    axes.set_xlabel("embedding scale σ")
    if panel.first:
        axes.set_ylabel("Frobenius norm (loss / weight²)")
