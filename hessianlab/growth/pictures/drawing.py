"""A growth figure: its panels, and below each that was published how far apart the two are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.growth.findings.comparison import SeriesComparison, compare
from hessianlab.growth.findings.exponents import ExponentFit, exponent_fits
from hessianlab.growth.findings.reference import Reference
from hessianlab.growth.findings.series import Series, SeriesKey, growth_series
from hessianlab.growth.pictures.layout import Panel, Rows
from hessianlab.growth.pictures.panel import draw_panel
from hessianlab.growth.pictures.ratios import comparable, draw_ratios
from hessianlab.growth.pictures.text import HOW_TO_READ, caption
from hessianlab.plots.picture import Picture
from hessianlab.plots.style import styled
from hessianlab.results import Result

_WIDTHS = {1: 6.0, 2: 4.9, 3: 4.4}
"""Inches of a panel, by the number of panels in a row."""
_HEIGHT, _STRIP = 3.7, 1.6
"""Inches of a panel, and of the strip of ratios below it."""

Compared = Mapping[SeriesKey, SeriesComparison]


def growth_picture(
    name: str, result: Result, rows: Rows, reference: Reference | None = None, folded: str = ""
) -> Picture:
    """The picture of some of a growth experiment's series.

    Args:
        name: Of the picture.
        result: Of a growth experiment.
        rows: Its panels, from one of the arrangements of `growth.pictures.layout`.
        reference: Published means; they are shown where the result has their size and their batch.
        folded: What a page says in its place until it is asked for.
    """
    fits = exponent_fits(result)
    compared = {found.series: found for found in compare(result, reference)} if reference is not None else {}
    shown = {line.key for row in rows for panel in row for line in panel.lines}
    compared = {key: found for key, found in compared.items() if key in shown}
    drawn = draw_growth(result, rows, fits, compared)
    words = caption(result, [fit for fit in fits if fit.series in shown], list(compared.values()))
    return Picture(name, drawn, words, reading=HOW_TO_READ, folded=folded)


def draw_growth(result: Result, rows: Rows, fits: Sequence[ExponentFit], compared: Compared) -> Figure:
    """All panels; a row with published series has a strip of ratios below."""
    series = growth_series(result)
    columns = max(len(row) for row in rows)
    keys = [[line.key for panel in row for line in panel.lines] for row in rows]
    strips = [any(comparable(compared[key]) for key in own if key in compared) for own in keys]
    heights = [height for strip in strips for height in ((_HEIGHT, _STRIP) if strip else (_HEIGHT,))]
    with styled():
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
    panel: Panel,
    series: Mapping[SeriesKey, Series],
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
