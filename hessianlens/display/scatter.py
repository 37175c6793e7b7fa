"""Two numbers of each name against each other, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hessianlens.display.colours import SERIES, light
from hessianlens.display.markup import LETTER, drawing, label, line, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import Scale, short

_WIDTH, _HEIGHT, _LEFT = 270, 200, 56
_NOTHING = 1e-9
"""Of the largest number: what is smaller, such as what rounding leaves of a zero, has no place on the axes."""


@dataclass(frozen=True)
class Point:
    """A name and its two numbers; `kind` gives the colour, `marked` writes the name beside it."""

    name: str
    x: float
    y: float
    kind: str = ""
    marked: bool = False


@dataclass(frozen=True)
class Scatter(Picture):
    """Points on logarithmic axes; those with a number that is zero, or nothing beside the others, are left out.

    Attributes:
        points: The points.
        across: What x is.
        up: What y is.

    >>> Scatter((Point("q", 1.0, 2.0), Point("v", 10.0, 0.0)), "|g|", "|H|").svg().count("<circle")
    1
    """

    points: Sequence[Point]
    across: str
    up: str

    @property
    def seen(self) -> list[Point]:
        """Points that lie on the axes."""
        least_x, least_y = (_NOTHING * max((getattr(p, k) for p in self.points), default=0.0) for k in "xy")
        return [p for p in self.points if p.x > 0 and p.y > 0 and p.x >= least_x and p.y >= least_y]

    def _colours(self) -> dict[str, str]:
        kinds = dict.fromkeys(point.kind for point in self.seen)
        return {kind: SERIES[k % len(SERIES)] for k, kind in enumerate(kinds)}

    def svg(self) -> str:
        """Dots, a colour a kind."""
        colours, top, parts = self._colours(), 8, []
        if len(colours) > 1:
            at, top = float(_LEFT), 28
            for kind, colour in colours.items():
                wide = 14 + LETTER * len(kind) + 12
                if at + wide > _LEFT + _WIDTH + 20 and at > _LEFT:
                    at, top = float(_LEFT), top + 18
                parts.append(tag("circle", cx=at + 4, cy=top - 18, r=4, fill=f"var(--{colour})"))
                parts.append(label(at + 12, top - 14, kind))
                at += wide
        bottom = top + _HEIGHT
        across = Scale.around([p.x for p in self.seen], _LEFT, _LEFT + _WIDTH, log=True)
        up = Scale.around([p.y for p in self.seen], bottom, top, log=True)
        for value, text in up.ticks(5):
            parts.append(line(_LEFT, up(value), _LEFT + _WIDTH, up(value)))
            parts.append(label(_LEFT - 5, up(value) + 4, text, "end", "muted"))
        for value, text in across.ticks(4):
            parts.append(line(across(value), top, across(value), bottom))
            parts.append(label(across(value), bottom + 16, text, "middle", "muted"))
        for p in self.seen:
            title = tag("title", escape(f"{p.name}: {short(p.x)}, {short(p.y)}"))
            place = {"cx": across(p.x), "cy": up(p.y)}
            parts.append(tag("circle", title, **place, r=4, fill=f"var(--{colours[p.kind]})", fill_opacity=0.85))
        parts += [self._named(p, across, up) for p in self.seen if p.marked]
        parts.append(label(_LEFT, bottom + 34, f"{self.up} over {self.across}", "start", "muted"))
        return drawing(_LEFT + _WIDTH + 20, bottom + 40, f"{self.up} over {self.across}", *parts)

    @staticmethod
    def _named(point: Point, across: Scale, up: Scale) -> str:
        x = across(point.x)
        right = x + 8 + LETTER * len(point.name) < _LEFT + _WIDTH + 20
        return label(x + 7 if right else x - 7, up(point.y) + 4, point.name, "start" if right else "end")

    def inches(self) -> tuple[float, float]:
        """A little wider than high."""
        return 5.5, 4.4

    def draw(self, ax: Any) -> None:
        """The same."""
        for kind, colour in self._colours().items():
            own = [p for p in self.seen if p.kind == kind]
            ax.plot([p.x for p in own], [p.y for p in own], "o", color=light(colour), markersize=5, label=kind or None)
        for p in self.seen:
            if p.marked:
                ax.annotate(p.name, (p.x, p.y), xytext=(5, 3), textcoords="offset points", fontsize="small")
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_xlabel(self.across)
        ax.set_ylabel(self.up)
        if len(self._colours()) > 1:
            ax.legend(fontsize="small")
