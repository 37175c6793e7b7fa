"""The entries of a matrix as pixels, with the borders of its blocks."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from hessianlens.display.markup import LETTER, drawing, label, line, tag
from hessianlens.display.picture import Picture
from hessianlens.display.scale import short

_BLUE, _RED = (0, 114, 178), (213, 94, 0)
_DECADES = 4
_SIDE = 260


@dataclass(frozen=True)
class Entries(Picture):
    """Blue where positive, red where negative, darker where larger, over four powers of ten.

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

    def level(self, value: float) -> float:
        """How dark an entry is, with its sign."""
        if not value or not math.isfinite(value):
            return 0.0
        return math.copysign(max(0.0, 1 + math.log10(abs(value) / self.largest) / _DECADES), value)

    def svg(self) -> str:
        """An image of one pixel an entry, enlarged."""
        height, width = len(self.values), len(self.values[0])
        pixel = _SIDE / max(height, width)
        left = max((len(name) for name, _ in self.rows), default=0) * LETTER + 10
        top, wide, tall = (20 if self.columns else 4), pixel * width, pixel * height
        image = tag(
            "image",
            x=left,
            y=top,
            width=wide,
            height=tall,
            href=f"data:image/png;base64,{base64.b64encode(self._png()).decode()}",
            preserveAspectRatio="none",
            style="image-rendering: pixelated",
        )
        frame = tag("rect", x=left, y=top, width=wide, height=tall, fill="none", stroke="var(--grid)")
        parts = [image, frame]
        for name, start, size in _placed(self.rows):
            parts.append(label(left - 6, top + pixel * (start + size / 2) + 4, name, "end"))
            if start:
                parts.append(line(left, top + pixel * start, left + wide, top + pixel * start, "muted"))
        for name, start, size in _placed(self.columns):
            if len(name) * LETTER < pixel * size + 12:
                parts.append(label(left + pixel * (start + size / 2), 14, name, "middle"))
            if start:
                parts.append(line(left + pixel * start, top, left + pixel * start, top + tall, "muted"))
        told = f"{self.label}, up to {short(self.largest)}"
        parts.append(label(4, top + tall + 18, told, "start", "muted"))
        return drawing(max(left + wide, LETTER * len(told)) + 8, top + tall + 24, told, *parts)

    def _png(self) -> bytes:
        """One pixel an entry; it lies on light and on dark ground alike, since only its opacity changes."""
        top, lines = self.largest, []
        for row in self.values:
            pixels = bytearray([0])
            for value in row:
                pixels += bytes((*(_BLUE if value > 0 else _RED), round(255 * abs(self.level(value))) if top else 0))
            lines.append(bytes(pixels))
        size = struct.pack(">IIBBBBB", len(self.values[0]), len(self.values), 8, 6, 0, 0, 0)
        chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(b"".join(lines), 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)

    def inches(self) -> tuple[float, float]:
        """Of one shape with the matrix."""
        share = len(self.values) / len(self.values[0])
        return 5.0, min(max(5.0 * share, 1.6), 8.0)

    def draw(self, ax: Any) -> None:
        """The same as an image on a symmetric logarithmic scale."""
        from matplotlib.colors import SymLogNorm

        top = self.largest or 1.0
        norm = SymLogNorm(top * 10.0**-_DECADES, vmin=-top, vmax=top)
        image = ax.imshow(self.values, norm=norm, cmap="RdBu", aspect="auto", interpolation="nearest")
        bar = ax.figure.colorbar(image, ax=ax, label=self.label)
        bar.set_ticks([-top, 0.0, top], labels=[short(-top), "0", short(top)])
        bar.minorticks_off()
        for blocks, across, ticks in (
            (self.rows, ax.axhline, ax.set_yticks),
            (self.columns, ax.axvline, ax.set_xticks),
        ):
            placed = _placed(blocks)
            if placed:
                ticks([start + size / 2 - 0.5 for _, start, size in placed], [name for name, _, _ in placed])
            for _, start, _ in placed[1:]:
                across(start - 0.5, color="0.5", linewidth=0.8)


def _placed(blocks: Sequence[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Name, first line and number of lines of each block."""
    ends = list(accumulate(size for _, size in blocks))
    return [(name, end - size, size) for (name, size), end in zip(blocks, ends, strict=True)]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
