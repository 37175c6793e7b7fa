"""What a whole is made of: one bar in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hessianlens.display.colours import light
from hessianlens.display.markup import LETTER, drawing, label, tag
from hessianlens.display.picture import Picture

_WIDTH, _BAR = 330, 20


@dataclass(frozen=True)
class Share:
    """A piece.

    Attributes:
        name: What it is.
        size: How large, in any unit.
        text: How that is said.
        colour: A name of the palette.
    """

    name: str
    size: float
    text: str
    colour: str


@dataclass(frozen=True)
class Shares(Picture):
    """One bar in pieces, each named below it.

    Attributes:
        shares: The pieces, from left to right.
        label: What the whole is.

    >>> Shares((Share("negative", 0.25, "25 %", "red"), Share("positive", 0.75, "75 %", "blue")), "").svg().count(
    ...     "<rect"
    ... )
    4
    """

    shares: Sequence[Share]
    label: str

    def svg(self) -> str:
        """The bar and a line a piece."""
        whole = sum(max(share.size, 0.0) for share in self.shares) or 1.0
        parts, at = [], 4.0
        for k, share in enumerate(self.shares):
            width = _WIDTH * max(share.size, 0.0) / whole
            title = tag("title", escape(f"{share.name}: {share.text}"))
            fill = f"var(--{share.colour})"
            parts.append(tag("rect", title, x=at, y=4, width=width, height=_BAR, fill=fill))
            y = _BAR + 12 + 18 * k
            parts.append(tag("rect", x=4, y=y, width=10, height=10, fill=fill))
            parts.append(label(20, y + 10, f"{share.name}: {share.text}"))
            at += width
        bottom = _BAR + 12 + 18 * len(self.shares)
        if self.label:
            parts.append(label(4, bottom + 14, self.label, "start", "muted"))
            bottom += 20
        longest = max([len(self.label), *(len(s.name) + len(s.text) + 4 for s in self.shares)])
        return drawing(max(_WIDTH + 8, longest * LETTER + 24), bottom + 4, self.label or "shares", *parts)

    def inches(self) -> tuple[float, float]:
        """Wide and low."""
        return 6.0, 1.9

    def draw(self, ax: Any) -> None:
        """The same as stacked bars."""
        at = 0.0
        for share in self.shares:
            ax.barh([0], [share.size], left=at, color=light(share.colour), label=f"{share.name}: {share.text}")
            at += share.size
        ax.set_yticks([])
        ax.set_xlabel(self.label)
        ax.set_ylim(-1.0, 0.6)
        ax.legend(loc="lower left", ncols=2, fontsize="small", frameon=False)
