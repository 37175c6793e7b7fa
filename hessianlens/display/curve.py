"""A function of a number: a density, a distribution, sorted values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hessianlens.display.axes import ticked
from hessianlens.display.colours import light
from hessianlens.display.markup import LETTER, drawing, label, line, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import Scale

_WIDTH, _HEIGHT, _LEFT, _TOP = 290, 150, 46, 8
_FLOOR = 1e-4
"""The smallest part of the largest value that a logarithmic axis goes down to."""


@dataclass(frozen=True)
class Curve(Picture):
    """A line, and where it lies between.

    Attributes:
        x: Where.
        y: The values.
        across: What x is.
        up: What y is.
        low: Lower ends of the values; none if they are known.
        high: Upper ends.
        log: Whether the values are on a logarithmic axis, down to 1e-4 of the largest.
        zero: Whether a line marks ``x = 0``.

    >>> Curve([0.0, 1.0, 2.0], [1.0, 2.0, 1.0], "eigenvalue", "density").svg().count("<path")
    1
    """

    x: Sequence[float]
    y: Sequence[float]
    across: str
    up: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    log: bool = False
    zero: bool = True

    def _floor(self) -> float:
        return max(max(self.y), 1e-300) * _FLOOR

    def _scales(self) -> tuple[Scale, Scale]:
        seen = [*self.y, *self.low, *self.high]
        top = max(seen, default=1.0)
        shown = [v for v in seen if v >= self._floor()] if self.log else [*seen, 0.0, top]
        spots = Scale.around(self.x, _LEFT, _LEFT + _WIDTH)
        ends = (min(self.x), max(self.x)) if max(self.x) > min(self.x) else (spots.low, spots.high)
        across = Scale(*ends, _LEFT, _LEFT + _WIDTH)
        return across, Scale.around(shown, _TOP + _HEIGHT, _TOP, self.log)

    def _path(self, values: Sequence[float], backwards: bool = False) -> str:
        across, up = self._scales()
        points = [f"{across(x):.1f} {up(y):.1f}" for x, y in zip(self.x, values, strict=True)]
        return " L".join(reversed(points) if backwards else points)

    def svg(self) -> str:
        """The line over the band that it may lie in."""
        across, up = self._scales()
        bottom = _TOP + _HEIGHT
        parts = ticked(across, up)
        if self.zero and across.low < 0 < across.high:
            parts.append(line(across(0.0), _TOP, across(0.0), bottom, "muted", 1.2, stroke_dasharray="3 3"))
        if self.low:
            band = f"M{self._path(self.high)} L{self._path(self.low, backwards=True)} Z"
            parts.append(tag("path", d=band, fill="var(--blue)", fill_opacity=0.18))
        parts.append(tag("path", d=f"M{self._path(self.y)}", fill="none", stroke="var(--blue)", stroke_width=1.6))
        told = f"{self.up} over {self.across}"
        parts.append(label(_LEFT, bottom + 34, told, "start", "muted"))
        return drawing(max(_LEFT + _WIDTH + 16, _LEFT + LETTER * len(told)), bottom + 40, told, *parts)

    def draw(self, ax: Any) -> None:
        """The same with a filled band."""
        if self.low:
            ax.fill_between(self.x, self.low, self.high, color=light("blue"), alpha=0.18, linewidth=0)
        ax.plot(self.x, self.y, color=light("blue"))
        if self.zero and min(self.x) < 0 < max(self.x):
            ax.axvline(0.0, color=light("muted"), linestyle=":", linewidth=1)
        if self.log:
            ax.set_yscale("log")
            ax.set_ylim(self._floor(), 2 * max([*self.y, *self.high]))
        ax.set_xlabel(self.across)
        ax.set_ylabel(self.up)
