"""Matrices as heat maps: one number per pair of names, or the entries themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from hessianlens.display.chart import LETTER, Axis, ChartModel, HeatMap, Picture, Segments, short, shorten_name

_MOST_LETTERS = 26
_WRITTEN_COLUMNS = 8
"""Columns up to which the numbers stand in the cells."""
_ENTRY_DECADES, _GRID_DECADES = 4, 8
"""Powers of ten below the largest entry that still have a colour."""
_ENTRIES_PIXELS = 260
_CELL_PIXELS = ((12, 26), (24, 18), (48, 10), (10**9, 5))
"""Columns up to which a cell without a number has this size."""


@dataclass(frozen=True)
class Grid(Picture):
    """Cells, darker where the number is larger.

    Attributes:
        rows: Names of the rows; none if they are counted.
        columns: Names of the columns; none if they are counted.
        values: One row per name; None or NaN where there is nothing.
        label: What the numbers are.
        log: Whether darkness goes with the logarithm; a zero then stays blank.
        signed: Whether negative numbers are red.

    >>> Grid(("Q", "K"), ("Q", "K"), [[1.0, 0.5], [0.5, 0.0]], "norm").svg().count("<rect")
    4
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Sequence[Sequence[float | None]]
    label: str
    log: bool = True
    signed: bool = False

    def chart(self) -> ChartModel:
        """Numbers in the cells where there are few; names of columns by their number where they are long."""
        height, width = len(self.values), max((len(row) for row in self.values), default=0)
        written = bool(self.rows) and width <= _WRITTEN_COLUMNS
        side = next(pixels for most, pixels in _CELL_PIXELS if max(width, height) <= most)
        wide, tall = (62, 30) if written else (side, side)
        fitting = max(map(len, self.columns), default=0) * LETTER < wide
        numbered = bool(self.columns) and not fitting
        heads, names = self.columns if fitting else (), self.rows if tall >= 14 else ()
        if numbered:
            every = 1 if wide >= 22 else 2
            heads = tuple(str(k + 1) if k % every == 0 else "" for k in range(width)) if wide >= 16 else ()
        texts = [(f"{k + 1}  " if numbered else "") + shorten_name(name, _MOST_LETTERS) for k, name in enumerate(names)]
        x = Axis.of_names(heads or [""] * width, wide * width, opposite=True)
        y = Axis.of_names(texts or [""] * height, tall * height, down=True)
        return ChartModel(x, y, [self.heat_map(written)], caption=self.label)

    def heat_map(self, written: bool = False) -> HeatMap:
        """The cells."""
        sizes = [abs(v) for row in self.values for v in row if v is not None and math.isfinite(v)]
        sizes = [size for size in sizes if size > 0]
        top = max(sizes, default=1.0)
        least = min(max(min(sizes, default=1.0), top * 10.0**-_GRID_DECADES), top / 10)
        titles = [
            [f"{self._name(self.rows, i)}, {self._name(self.columns, j)}: {short(v, 4)}" for j, v in enumerate(row)]
            for i, row in enumerate(self.values)
        ]
        return HeatMap(self.values, least, top, self.log, self.signed, titles=titles, written=written)

    @staticmethod
    def _name(names: Sequence[str], place: int) -> str:
        return names[place] if names else str(place)


@dataclass(frozen=True)
class Entries(Picture):
    """Entries of a matrix: blue where positive, red where negative, darker where larger, over four powers of ten.

    Attributes:
        values: The matrix, row by row.
        label: What the entries are.
        rows: Name and number of rows of each block, from the top; none if there are no borders.
        columns: The same for the columns.

    >>> picture = Entries([[1.0, -0.5], [0.0, 2.0]], "entries")
    >>> picture.largest, picture.svg().count("<image")
    (2.0, 1)
    """

    values: Sequence[Sequence[float]]
    label: str
    rows: tuple[tuple[str, int], ...] = ()
    columns: tuple[tuple[str, int], ...] = ()

    @property
    def largest(self) -> float:
        """The largest absolute entry."""
        return max((abs(v) for row in self.values for v in row if math.isfinite(v)), default=0.0)

    def chart(self) -> ChartModel:
        """An image of one pixel per entry, with the borders of the blocks."""
        height, width = len(self.values), len(self.values[0])
        pixel = _ENTRIES_PIXELS / max(height, width)
        rows, columns = _centres(self.rows), _centres(self.columns)
        fitting = tuple((at, name) for at, name, size in columns if len(name) * LETTER < pixel * size + 12)
        x = Axis(-0.5, width - 0.5, length=pixel * width, named=fitting, opposite=True)
        named = tuple((at, name) for at, name, _ in rows)
        y = Axis(height - 0.5, -0.5, length=pixel * height, named=named)
        top = self.largest or 1.0
        image = HeatMap(self.values, top * 10.0**-_ENTRY_DECADES, top, signed=True, pixels=True)
        across, down = ([at - size / 2 for at, _, size in placed][1:] for placed in (columns, rows))
        borders = (
            Segments(across, [y.low] * len(across), across, [y.high] * len(across), "muted", 1.0),
            Segments([x.low] * len(down), down, [x.high] * len(down), down, "muted", 1.0),
        )
        return ChartModel(x, y, [image, *borders], caption=f"{self.label}, up to {short(self.largest)}")


def _centres(blocks: Sequence[tuple[str, int]]) -> list[tuple[float, str, int]]:
    """Middle, name and number of lines of each block."""
    ends = accumulate(size for _, size in blocks)
    return [(end - size / 2 - 0.5, name, size) for (name, size), end in zip(blocks, ends, strict=True)]
