"""The strip below a panel: measured means over published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from hessianlab.growth.findings.comparison import ComparedPoint, SeriesComparison
from hessianlab.growth.findings.series import SeriesKey
from hessianlab.growth.pictures.layout import Line, Panel
from hessianlab.plots.style import INK

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


def draw_ratios(axes: Axes, panel: Panel, compared: Mapping[SeriesKey, SeriesComparison]) -> None:
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


def _draw_points(axes: Axes, line: Line, points: Sequence[ComparedPoint], aside: float) -> np.ndarray:
    sigma = np.array([point.sigma for point in points])
    ratio = np.array([point.ours / point.theirs for point in points])
    error = ratio * [point.relative_error for point in points]
    apart = _ASIDE * aside * np.log(sigma[-1] / sigma[0]) / max(len(sigma) - 1, 1)
    axes.errorbar(sigma * np.exp(apart), ratio, error, fmt="o", color=line.colour, markersize=2.6, linewidth=0.9)
    return ratio


def _write_ratios(axes: Axes, lines: Sequence[tuple[Line, SeriesComparison]]) -> None:
    """Above the strip, in the colours of the lines, from the bottom up."""
    told = [(f"{line.name} {_told(found)}", line.colour) for line, found in lines if np.isfinite(found.ratio)]
    across = 3 if all(len(line.name) <= _LONG_NAME for line, _ in lines) else 2
    rows = -(-len(told) // across)
    for number, (text, colour) in enumerate(told):
        row, column = divmod(number, across)
        place = (column / across, 1.03 + 0.13 * (rows - 1 - row))
        axes.text(*place, text, color=colour, transform=axes.transAxes, va="bottom", size=7.5)


def _told(found: SeriesComparison) -> str:
    return found.ratio_in_words() if comparable(found) else "exactly zero in both"
