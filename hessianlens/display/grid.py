"""A number for every pair of names, or for every cell: a matrix as a map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from hessianlens.display.markup import LETTER, drawing, label, shortened, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import short

_LONGEST = 26
_WRITTEN = 8
"""Columns up to which the numbers stand in the cells."""


@dataclass(frozen=True)
class Grid(Picture):
    """Cells, darker where the number is larger.

    Attributes:
        rows: Names of the rows; none if they are counted.
        columns: Names of the columns; none if they are counted.
        values: A row a name; None or NaN where there is nothing.
        label: What the numbers are.
        log: Whether darkness goes with the logarithm; a zero then stays blank.

    >>> Grid(("Q", "K"), ("Q", "K"), [[1.0, 0.5], [0.5, 0.0]], "norm").svg().count("<rect")
    4
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Sequence[Sequence[float | None]]
    label: str
    log: bool = True

    def levels(self) -> list[list[float | None]]:
        """How dark every cell is, from 0 to 1; None where it stays blank."""
        numbers = [abs(v) for row in self.values for v in row if v is not None and _seen(v)]
        if not self.log:
            top = max(numbers, default=1.0) or 1.0
            return [[abs(v) / top if v is not None and _seen(v) else None for v in row] for row in self.values]
        sizes = [v for v in numbers if v > 0]
        top = max(sizes, default=1.0)
        low = max(min(sizes, default=1.0), top * 1e-8)
        span = max(math.log(top / low), math.log(10.0))

        def level(v: float | None) -> float | None:
            if v is None or not _seen(v) or v == 0:
                return None
            return max(0.0, 1 - math.log(top / abs(v)) / span)

        return [[level(v) for v in row] for row in self.values]

    def svg(self) -> str:
        """Numbers in the cells where there are few, else a tooltip in each."""
        count = max((len(row) for row in self.values), default=0)
        written = bool(self.rows) and count <= _WRITTEN
        width, height = (62, 30) if written else (_side(max(count, len(self.values))),) * 2
        left = (min(max(map(len, self.rows)), _LONGEST) + 4) * LETTER if self.rows else 4
        own = _fits(self.columns, width)
        top = 20 if self.columns and (own or width >= 16) else 4
        parts = []
        if top == 20:
            heads = self.columns if own else [str(k + 1) for k in range(count)]
            parts += [
                label(left + width * (k + 0.5), 14, head, "middle", "muted")
                for k, head in enumerate(heads)
                if own or width >= 22 or k % 2 == 0
            ]
        for i, (row, levels) in enumerate(zip(self.values, self.levels(), strict=True)):
            y = top + height * i
            if self.rows and height >= 14:
                number = "" if own or not self.columns else f"{i + 1}  "
                name = number + shortened(self.rows[i], _LONGEST)
                parts.append(label(left - 8, y + height / 2 + 4, name, "end"))
            for j, (value, level) in enumerate(zip(row, levels, strict=True)):
                parts.append(self._cell(i, j, left + width * j, y, (width, height), value, level, written))
        bottom = top + height * len(self.values)
        parts.append(label(4, bottom + 18, self.label, "start", "muted"))
        wide = max(left + width * count + 6, LETTER * len(self.label) + 8)
        return drawing(wide, bottom + 24, self.label, *parts)

    def _cell(
        self,
        i: int,
        j: int,
        x: float,
        y: float,
        size: tuple[int, int],
        value: float | None,
        level: float | None,
        written: bool,
    ) -> str:
        gap = 1 if size[0] > 6 else 0
        shade = {"fill": "var(--grid)", "fill_opacity": 0.35}
        if level is not None:
            shade = {"fill": "var(--blue)", "fill_opacity": 0.06 + 0.94 * level}
        place = {"x": x, "y": y, "width": size[0] - gap, "height": size[1] - gap}
        names = (self.rows[i] if self.rows else str(i), self.columns[j] if self.columns else str(j))
        title = tag("title", escape(f"{names[0]}, {names[1]}: {short(value, 4)}"))
        box = tag("rect", title, **place, **shade)
        if not written:
            return box
        ink = "paper" if level is not None and level > 0.55 else "ink"
        centre = x + (size[0] - gap) / 2
        return box + label(centre, y + size[1] / 2 + 4, short(value), "middle", ink, pointer_events="none")

    def inches(self) -> tuple[float, float]:
        """Square, with room for the names."""
        side = min(2.4 + 0.35 * len(self.values), 9.0)
        return side + 1.2, side

    def draw(self, ax: Any) -> None:
        """The same as an image with a bar of colours."""
        from matplotlib.colors import LogNorm

        numbers = [
            [abs(v) if v is not None and _seen(v) and (v or not self.log) else math.nan for v in row]
            for row in self.values
        ]
        sizes = [v for row in numbers for v in row if not math.isnan(v)]
        spread = self.log and bool(sizes)
        norm = LogNorm(max(min(sizes), max(sizes) * 1e-8), max(sizes)) if spread else None
        image = ax.imshow(numbers, norm=norm, cmap="Blues", aspect="auto", interpolation="nearest")
        ax.figure.colorbar(image, ax=ax, label=self.label)
        for names, place in ((self.rows, ax.set_yticks), (self.columns, ax.set_xticks)):
            if names and len(names) <= 60:
                rotated = {"rotation": 90} if place == ax.set_xticks and not _fits(names, 40) else {}
                place(range(len(names)), names, **rotated)


def _seen(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _side(count: int) -> int:
    """Pixels of a cell without a number."""
    return next(side for most, side in ((12, 26), (24, 18), (48, 10), (10**9, 5)) if count <= most)


def _fits(names: Sequence[str], width: float) -> bool:
    return max((len(name) for name in names), default=0) * LETTER < width
