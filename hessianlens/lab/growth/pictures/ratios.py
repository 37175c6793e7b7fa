"""The strip below a panel: measured means over published ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullFormatter

from hessianlens.lab.growth.findings.comparison import SeriesComparison
from hessianlens.lab.growth.findings.series import SeriesKey
from hessianlens.lab.growth.pictures.layout import Panel
from hessianlens.lab.plots.style import INK

_TICKS = (0.1, 0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0, 5.0, 10.0)
_NARROWEST, _WIDEST = 1.12, 10.0
"""The strip reaches at least and at most this factor to both sides of one."""
_MOST_TICKS = 5


def draw_ratios(axes: Axes, panel: Panel, compared: Mapping[SeriesKey, SeriesComparison]) -> None:
    """Ours over published at every sigma, in the colour of the line, with bars of one standard error of both.

    A line of text for each series has the ratio over all sigma. Points that are not sound are left out.
    """
    reach, texts = _NARROWEST, []
    for line in panel.lines:
        found = compared.get(line.key)
        if found is None:
            continue
        if np.isfinite(found.ratio):
            texts.append((f"{line.name} {found.ratio_in_words()}", line.colour))
        points = [p for p in found.sound if p.ours > 0 and p.theirs > 0]
        if points:
            ratio = np.array([p.ours / p.theirs for p in points])
            error = ratio * [p.relative_error for p in points]
            axes.errorbar(
                [p.sigma for p in points], ratio, error, fmt="o", color=line.colour, markersize=3, linewidth=0.9
            )
            reach = max(reach, float(np.exp(np.abs(np.log(ratio)).max())))
    limit = min(1.1 * reach, _WIDEST)
    axes.axhline(1, color=INK, linewidth=0.8, zorder=0)
    axes.set_yscale("log")
    # Room for the words above the points.
    axes.set_ylim(1 / limit, limit ** (1 + 0.55 * len(texts)))
    ticks = [tick for tick in _TICKS if 1 / limit <= tick <= limit]
    axes.yaxis.set_major_locator(FixedLocator(_thinned(ticks)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.set_ylabel("ours / published", size=8)
    for number, (text, colour) in enumerate(texts):
        place = (0.02, 0.97 - number * 0.55 / (2 + 0.55 * len(texts)))
        axes.text(*place, text, color=colour, transform=axes.transAxes, va="top", size=8)


def _thinned(ticks: list[float]) -> list[float]:
    """Few enough to be read; one among them."""
    if len(ticks) <= _MOST_TICKS:
        return ticks
    return [ticks[0], *(t for t in ticks[1:-1] if t in (0.5, 1.0, 2.0)), ticks[-1]]
