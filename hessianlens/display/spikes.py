"""Eigenvalues beside each other, with their signs and their pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hessianlens.display.colours import light
from hessianlens.display.markup import drawing, label, line, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import Scale, short

_WIDTH, _HEIGHT, _LEFT, _TOP = 290, 150, 52, 8


@dataclass(frozen=True)
class Spikes(Picture):
    """A line from zero to every value, blue above and red below.

    Attributes:
        values: The eigenvalues, in order.
        label: What they are.
        errors: How far each may be off; none if they are known.
        paired: Whether ``+lambda`` and ``-lambda`` belong together; then they stand above each other.

    >>> Spikes([3.0, 1.0, -1.0, -3.0], "eigenvalue", paired=True).svg().count("<circle")
    4
    """

    values: Sequence[float]
    label: str
    errors: Sequence[float] = ()
    paired: bool = False

    def places(self) -> list[float]:
        """Where each stands: by its rank, or by that of its size among those of its sign."""
        if not self.paired:
            return [float(k) for k in range(len(self.values))]
        rank: dict[bool, int] = {True: 0, False: 0}
        found = [0.0] * len(self.values)
        for k in sorted(range(len(self.values)), key=lambda k: -abs(self.values[k])):
            sign = self.values[k] > 0
            found[k] = float(rank[sign])
            rank[sign] += 1
        return found

    def svg(self) -> str:
        """Lines and dots over an axis at zero."""
        places = self.places()
        up = Scale.around([*self.values, 0.0], _TOP + _HEIGHT, _TOP)
        last = max(places, default=0.0)
        step = _WIDTH / (last + 1)
        bottom, parts = _TOP + _HEIGHT, []
        for value, text in up.ticks(5):
            parts.append(line(_LEFT, up(value), _LEFT + _WIDTH, up(value), "muted" if value == 0 else "grid"))
            parts.append(label(_LEFT - 5, up(value) + 4, text, "end", "muted"))
        for k, value in enumerate(self.values):
            x = _LEFT + step * (places[k] + 0.5)
            error = f" ± {self.errors[k]:.1e}" if self.errors else ""
            colour = "blue" if value > 0 else "red"
            spike = line(x, up(0.0), x, up(value), colour, max(min(step / 3, 3.0), 0.7), stroke_opacity=0.55)
            dot = tag("circle", cx=x, cy=up(value), r=max(min(step / 3, 3.5), 1.0), fill=f"var(--{colour})")
            parts.append(tag("g", tag("title", escape(f"{short(value, 5)}{error}")), spike, dot))
        parts.append(label(_LEFT, bottom + 18, self.label, "start", "muted"))
        return drawing(_LEFT + _WIDTH + 10, bottom + 24, self.label, *parts)

    def draw(self, ax: Any) -> None:
        """The same with stems."""
        places = self.places()
        for positive, colour in ((True, "blue"), (False, "red")):
            seen = [k for k, value in enumerate(self.values) if (value > 0) == positive]
            x, y = [places[k] for k in seen], [self.values[k] for k in seen]
            ax.vlines(x, 0, y, color=light(colour), alpha=0.5)
            errors = [self.errors[k] for k in seen] if self.errors else None
            ax.errorbar(x, y, yerr=errors, fmt="o", markersize=4, color=light(colour))
        ax.axhline(0.0, color=light("muted"), linewidth=0.8)
        ax.set_ylabel(self.label)
        ax.set_xlabel("rank by size" if self.paired else "rank")
