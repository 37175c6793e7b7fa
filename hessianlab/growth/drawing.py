"""A growth figure as a whole: its panels in rows, or ratios to published means, with a caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hessianlab.growth.comparison import ComparedPoint, SeriesComparison, compare
from hessianlab.growth.exponents import ExponentFit, exponent_fits
from hessianlab.growth.layout import GrowthPanel, Rows, SeriesStyle
from hessianlab.growth.panel import HOW_TO_READ, caption, draw_panel
from hessianlab.growth.reference import Reference
from hessianlab.growth.series import GrowthSeries, SeriesKey, growth_series
from hessianlab.plots.picture import ResultPicture
from hessianlab.plots.style import INK, figure_style
from hessianlab.results import Result

_TICKS = (10.0, 5.0, 2.0, 1.5, 1.25, 1.1, 1.05, 1.02)
_NARROWEST, _WIDEST = 1.04, 10.0
"""The strip reaches at least and at most this factor to both sides of one."""
_ASIDE = 0.1
"""Share of the distance between two points by which those of the next line stand aside."""
_LONG_NAME = 8
"""Names up to this length leave room for three of them side by side, longer ones for two."""


def comparable(found: SeriesComparison) -> list[ComparedPoint]:
    """Points that have a ratio."""
    return [point for point in found.sound if point.ours > 0 and point.theirs > 0]


def draw_ratios(axes: Axes, panel: GrowthPanel, compared: Mapping[SeriesKey, SeriesComparison]) -> None:
    """Ours over published at every sigma, in the colour of the line, with bars of one standard error of both.

    Above stands the ratio of each series over all sigma. Points that are not sound are left out.
    """
    lines = [(line, compared[line.key]) for line in panel.lines if line.key in compared]
    reach = _NARROWEST
    for number, (line, found) in enumerate(lines):
        points = comparable(found)
        if points:
            ratios = _draw_points(axes, line, points, number - (len(lines) - 1) / 2)
            reach = max(reach, float(np.exp(np.abs(np.log(ratios)).max())))
    limit = min(reach**1.15, _WIDEST)
    axes.axhline(1, color=INK, linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    axes.set_ylim(1 / limit, limit)
    tick = next((tick for tick in _TICKS if tick <= limit), 1.0)
    axes.yaxis.set_major_locator(FixedLocator(sorted({1 / tick, 1.0, tick})))
    axes.yaxis.set_major_formatter("{x:.2g}" if tick > 2 else "{x:.2f}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("ours / published", size=8)
    _write_ratios(axes, lines)


def _draw_points(axes: Axes, line: SeriesStyle, points: Sequence[ComparedPoint], aside: float) -> np.ndarray:
    sigma = np.array([point.sigma for point in points])
    ratio = np.array([point.ours / point.theirs for point in points])
    error = ratio * [point.relative_error for point in points]
    apart = _ASIDE * aside * np.log(sigma[-1] / sigma[0]) / max(len(sigma) - 1, 1)
    axes.errorbar(sigma * np.exp(apart), ratio, error, fmt="o", color=line.colour, markersize=2.6, linewidth=0.9)
    return ratio


def _write_ratios(axes: Axes, lines: Sequence[tuple[SeriesStyle, SeriesComparison]]) -> None:
    """Above the strip, in the colours of the lines, from the bottom up."""
    labels = [
        (f"{line.name} {_comparison_in_words(found)}", line.colour) for line, found in lines if np.isfinite(found.ratio)
    ]
    across = 3 if all(len(line.name) <= _LONG_NAME for line, _ in lines) else 2
    rows = -(-len(labels) // across)
    for number, (text, colour) in enumerate(labels):
        row, column = divmod(number, across)
        place = (column / across, 1.03 + 0.13 * (rows - 1 - row))
        axes.text(*place, text, color=colour, transform=axes.transAxes, va="bottom", size=7.5)


def _comparison_in_words(found: SeriesComparison) -> str:
    return found.ratio_in_words() if comparable(found) else "exactly zero in both"


_WIDTHS = {1: 6.0, 2: 4.9, 3: 4.4}
"""Inches of a panel, by the number of panels in a row."""
_HEIGHT, _STRIP = 3.7, 1.6
"""Inches of a panel, and of the strip of ratios below it."""

Compared = Mapping[SeriesKey, SeriesComparison]


def growth_picture(
    name: str, result: Result, rows: Rows, reference: Reference | None = None, folded: str = ""
) -> ResultPicture:
    """The picture of some of a growth experiment's series.

    Args:
        name: Of the picture.
        result: Of a growth experiment.
        rows: Its panels, from one of the arrangements of `growth.layout`.
        reference: Published means; they are shown where the result has their size and their batch.
        folded: What a page says in its place until it is asked for.
    """
    fits = exponent_fits(result)
    compared = {found.series: found for found in compare(result, reference)} if reference is not None else {}
    shown = {line.key for row in rows for panel in row for line in panel.lines}
    compared = {key: found for key, found in compared.items() if key in shown}
    drawn = draw_growth(result, rows, fits, compared)
    words = caption(result, [fit for fit in fits if fit.series in shown], list(compared.values()))
    return ResultPicture(name, drawn, words, reading=HOW_TO_READ, folded=folded)


def draw_growth(result: Result, rows: Rows, fits: Sequence[ExponentFit], compared: Compared) -> Figure:
    """All panels; a row with published series has a strip of ratios below."""
    series = growth_series(result)
    columns = max(len(row) for row in rows)
    keys = [[line.key for panel in row for line in panel.lines] for row in rows]
    strips = [any(comparable(compared[key]) for key in own if key in compared) for own in keys]
    heights = [height for strip in strips for height in ((_HEIGHT, _STRIP) if strip else (_HEIGHT,))]
    with figure_style():
        figure = Figure(figsize=(columns * _WIDTHS.get(columns, 4.0), sum(heights)), layout="constrained")
        grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
        line = 0
        for row, strip in zip(rows, strips, strict=True):
            for column, panel in enumerate(row):
                axes = figure.add_subplot(grid[line, column])
                below = figure.add_subplot(grid[line + 1, column], sharex=axes) if strip else None
                _draw(axes, below, panel, series, fits, compared, result)
                if column == 0:
                    axes.set_ylabel("Frobenius norm (loss / weight²)")
            line += 2 if strip else 1
    return figure


def _draw(
    axes: Axes,
    below: Axes | None,
    panel: GrowthPanel,
    series: Mapping[SeriesKey, GrowthSeries],
    fits: Sequence[ExponentFit],
    compared: Compared,
    result: Result,
) -> None:
    """A panel, and its strip where there is one."""
    own = any(comparable(compared[line.key]) for line in panel.lines if line.key in compared)
    draw_panel(axes, panel, series, fits, compared, linear=result.config["spacing"] == "linear")
    (axes if below is None or not own else below).set_xlabel("embedding scale σ")
    if below is None:
        return
    if not own:
        below.set_axis_off()
        return
    axes.tick_params(labelbottom=False)
    draw_ratios(below, panel, compared)
