"""A picture in numbers: named series of means with intervals, in panels; kept in a file, and drawn elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = 5
"""Kept of every number, which is more than draws can tell."""


@dataclass(frozen=True)
class Series:
    """Means with intervals along one axis.

    Attributes:
        name: For the legend; series of one name look alike in all panels.
        x: Where.
        mean: Of the draws there; a median where the caption says so.
        low: Lower end of the interval.
        high: Upper end.
    """

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Panel:
    """Series that share their axes."""

    title: str
    series: tuple[Series, ...]
    log_y: bool = False


@dataclass(frozen=True)
class Chart:
    """A picture in numbers.

    Attributes:
        caption: What marks, bands and axes mean.
        x_label: Of all panels.
        y_label: Of all panels; their titles say what they show if it is empty.
        panels: Row by row.
        columns: Panels in a row.
        names: If x counts names and is no quantity: these.

    >>> one = Chart("Means.", "steps", "loss", (Panel("text", (Series("a", (0.0,), (1.0,), (0.5,), (1.5,)),)),))
    >>> Chart.of(one.plain()) == one
    True
    """

    caption: str
    x_label: str
    y_label: str
    panels: tuple[Panel, ...]
    columns: int = 1
    names: tuple[str, ...] = ()

    @property
    def legend(self) -> tuple[str, ...]:
        """Names of all series, in the order of their first appearance."""
        return tuple(dict.fromkeys(series.name for panel in self.panels for series in panel.series))

    def plain(self) -> dict[str, Any]:
        """As a file keeps it."""
        panels = [
            {
                "title": panel.title,
                "log_y": panel.log_y,
                "series": [{"name": s.name} | {n: _rounded(getattr(s, n)) for n in _COLUMNS} for s in panel.series],
            }
            for panel in self.panels
        ]
        words = {"caption": self.caption, "x_label": self.x_label, "y_label": self.y_label}
        return {**words, "columns": self.columns, "names": list(self.names), "panels": panels}

    @classmethod
    def of(cls, kept: Mapping[str, Any]) -> Chart:
        """Back from `plain`."""
        panels = tuple(
            Panel(
                one["title"],
                tuple(Series(s["name"], **{n: tuple(s[n]) for n in _COLUMNS}) for s in one["series"]),
                one["log_y"],
            )
            for one in kept["panels"]
        )
        words = (kept["caption"], kept["x_label"], kept["y_label"])
        return cls(*words, panels, kept["columns"], tuple(kept["names"]))


_COLUMNS = ("x", "mean", "low", "high")


def rounded(value: float) -> float:
    """To as many digits as are kept.

    >>> rounded(1 / 3)
    0.33333
    """
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else value


def _rounded(values: Sequence[float]) -> list[float]:
    return [rounded(value) for value in values]
