"""Numbers with their intervals, a line a name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any

from hessianlens.display.colours import SERIES, light
from hessianlens.display.markup import LETTER, drawing, label, line, shortened, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import Scale, short
from hessianlens.errors import check_that

_ROW, _PLOT, _LONGEST = 20, 250, 30
_NOTHING = 1e-9
"""Of the largest value: what is smaller has no place on a logarithmic axis."""


@dataclass(frozen=True)
class Dot:
    """A number and the ends of its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, ends: tuple[float, float] | None = None) -> Dot:
        """A number with an interval, or without."""
        if ends is None:
            return cls(value, value, value)
        check_that(isinstance(ends, tuple) and len(ends) == 2, "ends", ends, "a pair of numbers, or None")
        return cls(value, *ends)

    def __str__(self) -> str:
        return short(self.value) + (f" [{short(self.low)}, {short(self.high)}]" if self.high > self.low else "")


@dataclass(frozen=True)
class Dots(Picture):
    """A dot plot with intervals.

    Attributes:
        names: What the lines are about.
        series: Numbers in the order of the names, by what they are; None where there is none.
        label: What the axis counts.
        log: Whether it is logarithmic; what is zero then, or nothing beside the largest, is an open dot at its edge.

    >>> picture = Dots(("q", "v"), {"full": (Dot(1.0, 0.5, 2.0), Dot.of(3.0))}, "norm")
    >>> picture.svg().count("<circle")
    2
    """

    names: tuple[str, ...]
    series: Mapping[str, Sequence[Dot | None]]
    label: str
    log: bool = True

    def _scale(self, start: float, stop: float) -> Scale:
        dots = [dot for row in self.series.values() for dot in row if dot is not None and not self._nothing(dot)]
        return Scale.around([end for dot in dots for end in self._ends(dot)], start, stop, self.log)

    @cached_property
    def _floor(self) -> float:
        """What is smaller is nothing beside the rest, such as what rounding leaves of a zero."""
        return _NOTHING * max(
            (dot.value for row in self.series.values() for dot in row if dot is not None), default=0.0
        )

    def _nothing(self, dot: Dot) -> bool:
        return self.log and not (dot.value > 0 and dot.value >= self._floor)

    def _ends(self, dot: Dot) -> tuple[float, ...]:
        """The value, and ends that are not far off: an interval from one probe would leave no room for the rest."""
        if not self.log:
            return dot.low, dot.value, dot.high
        return tuple(end for end in (dot.low, dot.value, dot.high) if dot.value / 30 <= end <= dot.value * 30)

    def svg(self) -> str:
        """Lines below each other, a colour a series."""
        left = min(max(map(len, self.names), default=0), _LONGEST) * LETTER + 12
        several = len(self.series) > 1
        top = 26 if several else 6
        bottom = top + _ROW * len(self.names)
        scale = self._scale(left, left + _PLOT)
        parts = [self._legend(left)] if several else []
        for value, text in scale.ticks():
            parts.append(line(scale(value), top, scale(value), bottom))
            parts.append(label(scale(value), bottom + 15, text, "middle", "muted"))
        for k, name in enumerate(self.names):
            middle = top + _ROW * (k + 0.5)
            parts.append(label(left - 10, middle + 4, shortened(name, _LONGEST), "end"))
            for s, row in enumerate(self.series.values()):
                dot = row[k]
                if dot is not None:
                    offset = (s - (len(self.series) - 1) / 2) * min(5.0, 12 / len(self.series))
                    parts.append(self._mark(dot, scale, middle + offset, SERIES[s % len(SERIES)], name))
        parts.append(label(left + _PLOT / 2, bottom + 32, self.label, "middle", "muted"))
        return drawing(left + _PLOT + 14, bottom + 38, f"{self.label} of {len(self.names)} names", *parts)

    def _legend(self, left: float) -> str:
        found, at = [], left
        for s, name in enumerate(self.series):
            found.append(tag("circle", cx=at + 4, cy=10, r=4, fill=f"var(--{SERIES[s % len(SERIES)]})"))
            found.append(label(at + 12, 14, name))
            at += 12 + LETTER * len(name) + 14
        return "".join(found)

    def _mark(self, dot: Dot, scale: Scale, y: float, colour: str, name: str) -> str:
        title = tag("title", escape(f"{name}: {dot}"))
        if self._nothing(dot):
            return tag("circle", title, cx=scale.start, cy=y, r=3.2, fill="none", stroke=f"var(--{colour})")
        bar = line(scale(dot.low), y, scale(dot.high), y, colour, 1.6) if dot.high > dot.low else ""
        return tag("g", title, bar, tag("circle", cx=scale(dot.value), cy=y, r=3.2, fill=f"var(--{colour})"))

    def inches(self) -> tuple[float, float]:
        """Taller with more lines."""
        return 6.0, 1.2 + 0.24 * len(self.names)

    def draw(self, ax: Any) -> None:
        """The same with error bars."""
        scale = self._scale(0, 1)
        for s, (name, row) in enumerate(self.series.items()):
            offset = (s - (len(self.series) - 1) / 2) * 0.2
            given = [(k + offset, dot) for k, dot in enumerate(row) if dot is not None]
            seen = [(y, dot) for y, dot in given if not self._nothing(dot)]
            ends = [[max(dot.value - dot.low, 0) for _, dot in seen], [_above(dot) for _, dot in seen]]
            colour = light(SERIES[s % len(SERIES)])
            at = [dot.value for _, dot in seen], [y for y, _ in seen]
            ax.errorbar(*at, xerr=ends, fmt="o", color=colour, markersize=4, capsize=0, label=name)
            zeros = [y for y, dot in given if self._nothing(dot)]
            if zeros:
                ax.plot([scale.low] * len(zeros), zeros, "o", color=colour, fillstyle="none", markersize=4)
        if self.log:
            ax.set_xscale("log")
        ax.set_xlim(scale.low, scale.high)
        ax.set_yticks(range(len(self.names)), self.names)
        ax.set_ylim(len(self.names) - 0.5, -0.5)
        ax.set_xlabel(self.label)
        if len(self.series) > 1:
            ax.legend(fontsize="small")


def _above(dot: Dot) -> float:
    return max(dot.high - dot.value, 0.0) if math.isfinite(dot.high) else 0.0
