"""A chart as a drawing: lines with bands along a quantity, marks with bars beside names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, log_axis, panels
from hessianlab.results import Chart, Panel, Series

Line: TypeAlias = str | tuple[float, tuple[float, float]]

COLOURS = (BLUE, RED, GREEN, ORANGE, PURPLE, SKY)
STYLES: tuple[Line, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))

_APART = 0.18
"""Between the marks of two series at one name."""

_LEAST_SPAN = 0.02
"""Of an axis, over its largest value."""


def look_of(place: int) -> tuple[str, Line]:
    """Colour and line of a series, by its place in the legend: colours repeat with another line."""
    return COLOURS[place % len(COLOURS)], STYLES[place // len(COLOURS) % len(STYLES)]


def draw_chart(chart: Chart, width: float = 4.4, height: float = 3.4) -> Figure:
    """All panels, each of the given size in inches, and one legend."""
    rows = -(-len(chart.panels) // chart.columns)
    with panels(chart.columns, rows, width=width, height=height) as (figure, all_axes):
        for axes, panel in zip(all_axes, chart.panels, strict=False):
            _draw_panel(axes, panel, chart)
        for axes in all_axes[len(chart.panels) :]:
            axes.set_axis_off()
        for axes in all_axes[: len(chart.panels)][-chart.columns :]:
            axes.set_xlabel(chart.x_label)
        for axes in all_axes[:: chart.columns]:
            axes.set_ylabel(chart.y_label)
        shown: dict[str, Artist] = {}
        for axes in all_axes:
            shown |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        legend_below(figure, {name: shown[name] for name in chart.legend if name in shown})
    return figure


def legend_below(figure: Figure, shown: Mapping[str, Artist]) -> None:
    """One legend for all axes, in as many columns as there is room for."""
    inches = 0.6 + 0.09 * max(map(len, shown), default=0)
    columns = max(1, min(len(shown), 4, int(figure.get_figwidth() / inches)))
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=columns)


def _draw_panel(axes: Axes, panel: Panel, chart: Chart) -> None:
    for series in panel.series:
        place = chart.legend.index(series.name)
        if chart.names:
            _marks(axes, series, place, _APART * (place - (len(chart.legend) - 1) / 2))
        else:
            _band(axes, series, place)
    if panel.log_y:
        log_axis(axes, "y")
    else:
        _no_magnifier(axes)
    if chart.names:
        axes.set_xticks(range(len(chart.names)), [_broken(name) for name in chart.names], fontsize=8)
    axes.set_title(panel.title)


def _no_magnifier(axes: Axes) -> None:
    """What is equal but for rounding is shown as equal."""
    low, high = axes.get_ylim()
    middle, least = (low + high) / 2, _LEAST_SPAN * max(abs(low), abs(high))
    if high - low < least:
        axes.set_ylim(middle - least / 2, middle + least / 2)


def _band(axes: Axes, series: Series, place: int) -> None:
    colour, style = look_of(place)
    axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    marker = "o" if len(series.x) < 8 else None
    axes.plot(series.x, series.mean, color=colour, linestyle=style, marker=marker, markersize=4, label=series.name)


def _marks(axes: Axes, series: Series, place: int, shift: float) -> None:
    colour, _ = look_of(place)
    at = [x + shift for x in series.x]
    axes.vlines(at, series.low, series.high, color=colour, linewidth=1.6)
    axes.plot(at, series.mean, "o", color=colour, markersize=5, label=series.name)


def _broken(name: str) -> str:
    return name.replace(", ", ",\n").replace("_", "\n")
