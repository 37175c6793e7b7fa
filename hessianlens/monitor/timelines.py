"""Numbers along a run, as lines over the steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hessianlens.display import Picture
from hessianlens.display.axes import ticked
from hessianlens.display.colours import SERIES, light
from hessianlens.display.markup import LETTER, drawing, label, line, shortened, tag
from hessianlens.display.scale import Scale
from hessianlens.monitor.record import Reading

_WIDTH, _HEIGHT, _LEFT, _TOP = 270, 160, 56, 10
_KEY, _NAME = 18, 40
"""Height of a line of the key, and letters of a name in it."""
_SPAN = 30.0
"""Values that are all above zero and lie further apart than this factor are on a logarithmic axis."""


@dataclass(frozen=True)
class Line:
    """One line: steps, readings, a name; a limit is dashed and takes part in no interval."""

    name: str
    steps: Sequence[int]
    readings: Sequence[Reading]
    limit: bool = False

    @property
    def values(self) -> list[float]:
        """The values without their intervals."""
        return [reading.value for reading in self.readings]


@dataclass(frozen=True)
class Timeline(Picture):
    """Lines over the steps of a run, with bands for the intervals.

    Attributes:
        lines: What is drawn; at most six, so that colours tell them apart.
        up: What the values are.

    >>> line = Line("model", [1, 2, 4], [Reading.of(v) for v in (1.0, 2.0, 1.5)])
    >>> Timeline([line], "largest eigenvalue").svg().count("<path")
    1
    """

    lines: Sequence[Line]
    up: str

    @property
    def log(self) -> bool:
        """Whether values are on a logarithmic axis."""
        seen = self._values()
        return bool(seen) and min(seen) > 0 and max(seen) > _SPAN * min(seen)

    def _values(self) -> list[float]:
        return [value for one in self.lines for value in one.values if math.isfinite(value)]

    def _scales(self) -> tuple[Scale, Scale]:
        steps = [step for one in self.lines for step in one.steps] or [0]
        first, last = min(steps), max(steps)
        across = Scale(float(first), float(max(last, first + 1)), _LEFT, _LEFT + _WIDTH)
        values = self._values()
        # Zero is the ground of what is not on a logarithmic axis; nothing but zeros lie on it.
        ground = [] if self.log else [0.0] if any(values) else [0.0, 1.0]
        return across, Scale.around([*values, *ground], _TOP + _HEIGHT, _TOP, self.log)

    def svg(self) -> str:
        """The lines above their key."""
        across, up = self._scales()
        bottom = _TOP + _HEIGHT
        parts = ticked(across, up)
        parts.append(label(_LEFT + _WIDTH, bottom + 34, "steps", "end", "muted"))
        for one, colour in zip(self.lines, _colours(self.lines), strict=True):
            parts.extend(_drawn(one, colour, across, up))
        names = [(shortened(one.name, _NAME), c) for one, c in zip(self.lines, _colours(self.lines), strict=True)]
        parts.append(label(_LEFT, bottom + 34, shortened(self.up, _NAME)))
        for number, (name, colour) in enumerate(names):
            height = bottom + 34 + (number + 1) * _KEY
            dashed = "5 4" if self.lines[number].limit else None
            parts.append(line(_LEFT, height - 4, _LEFT + 18, height - 4, colour, 2.0, stroke_dasharray=dashed))
            parts.append(label(_LEFT + 25, height, name))
        width = max(_LEFT + _WIDTH + 16, *(_LEFT + 25 + LETTER * len(name) for name, _ in names))
        return drawing(width, bottom + 42 + _KEY * len(names), f"{self.up} over steps", *parts)

    def draw(self, ax: Any) -> None:
        """The same with filled bands."""
        for one, colour in zip(self.lines, _colours(self.lines), strict=True):
            drawn = light(colour)
            if not one.limit and any(r.low < r.high for r in one.readings):
                low, high = ([r[k] for r in one.readings] for k in (1, 2))
                ax.fill_between(one.steps, low, high, color=drawn, alpha=0.18, linewidth=0)
            style = {"linestyle": "--"} if one.limit else {"marker": "o", "markersize": 3}
            ax.plot(one.steps, one.values, color=drawn, label=one.name, **style)
        if self.log:
            ax.set_yscale("log")
        ax.set_xlabel("steps")
        ax.set_ylabel(self.up)
        if len(self.lines) > 1:
            ax.legend(frameon=False, fontsize="small")


def _colours(lines: Sequence[Line]) -> list[str]:
    own = iter(SERIES * (1 + len(lines) // len(SERIES)))
    return ["muted" if one.limit else next(own) for one in lines]


def _drawn(one: Line, colour: str, across: Scale, up: Scale) -> list[str]:
    spots = [(across(s), r) for s, r in zip(one.steps, one.readings, strict=True) if math.isfinite(r.value)]
    parts = []
    if not one.limit and any(r.low < r.high for _, r in spots):
        upper = [f"{x:.1f} {up(r.high):.1f}" for x, r in spots]
        lower = [f"{x:.1f} {up(r.low):.1f}" for x, r in reversed(spots)]
        parts.append(tag("path", d=f"M{' L'.join([*upper, *lower])} Z", fill=f"var(--{colour})", fill_opacity=0.15))
    if one.limit:
        parts += [
            line(a, up(r.value), b, up(s.value), colour, 1.6, stroke_dasharray="5 4")
            for (a, r), (b, s) in pairwise(spots)
        ]
        return parts
    path = " L".join(f"{x:.1f} {up(r.value):.1f}" for x, r in spots)
    parts.append(tag("path", d=f"M{path}", fill="none", stroke=f"var(--{colour})", stroke_width=1.6))
    parts += [tag("circle", cx=x, cy=up(r.value), r=2.2, fill=f"var(--{colour})") for x, r in spots]
    return parts
