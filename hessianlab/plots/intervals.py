"""Means with their intervals, one below the other, against a line at zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from hessianlab.plots.style import BLUE, MUTED, ORANGE, RED, panels

_LINE = 0.44
"""Inches of a row: its name, and its interval below."""


class Interval(NamedTuple):
    """A row: its name, its mean and the ends of its interval."""

    name: str
    mean: float
    low: float
    high: float


def draw_intervals(rows: Sequence[Interval], title: str, label: str) -> Figure:
    """Rows from the top down: above zero, below zero and across it in three colours.

    >>> figure = draw_intervals([Interval("a minus b", 0.2, 0.1, 0.3)], "Losses", "difference")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['a minus b']
    """
    with panels(1, width=4.6, height=_LINE * len(rows) + 1.2) as (figure, (axes,)):
        for y, row in enumerate(rows):
            colour, marker = (RED, "s") if row.low > 0 else (BLUE, "o") if row.high < 0 else (ORANGE, "D")
            axes.plot([row.low, row.high], [y, y], color=colour, linewidth=1.8)
            axes.plot([row.mean], [y], marker, color=colour, markersize=6)
            axes.text(0.0, y - 0.22, row.name, transform=axes.get_yaxis_transform(), va="bottom", size=9)
        axes.axvline(0, color=MUTED, linewidth=1, zorder=0)
        axes.set_yticks([])
        axes.set_ylim(len(rows) - 0.5, -0.9)
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.set_title(title)
        axes.set_xlabel(label)
    return figure
