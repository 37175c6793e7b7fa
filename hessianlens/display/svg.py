"""A chart as inline SVG: pixels, texts of twelve of them, colours that follow the page."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator, Sequence
from html import escape
from textwrap import wrap

from hessianlens.display.chart import (
    LETTER,
    Axis,
    Band,
    Bar,
    ChartModel,
    HeatMap,
    Key,
    Mark,
    Markers,
    Polyline,
    Segments,
    Words,
    short,
)
from hessianlens.display.markup import tag

_EDGE, _LEFT = 8.0, 46.0
"""Room around a chart, and to the left of one with numbers there, so that charts beside each other are in line."""
_LINE = 18.0
"""Height of a line of text."""
_BLUE, _RED = (0, 114, 178), (213, 94, 0)


def render(chart: ChartModel) -> str:
    """The chart with its legend, ticks and caption."""
    x, y = chart.x, chart.y
    left = max((LETTER * len(text) + 13 for _, text in y.ticks), default=4.0)
    left = left if y.named is not None else max(left, _LEFT)
    width = left + x.length + 2 * _EDGE
    rows = _rows(chart.legend, width - left, chart.legend_below)
    lines = wrap(chart.description, max(int((width - _EDGE) / LETTER), 40))
    above = 0.0 if chart.legend_below else _LINE * len(rows)
    canvas = _Canvas(x, y, left, above + _EDGE + (12.0 if x.opposite and x.ticks else 0.0))
    parts = [*canvas.ticks()]
    for mark in chart.marks:
        parts += canvas.drawn(mark)
    bottom = canvas.bottom + (_LINE if x.ticks and not x.opposite else 0.0)
    start = left if x.ticks and not x.opposite else 4.0
    if not chart.legend_below:
        parts += _legend(rows, left, 0.0)
    elif chart.caption:
        parts += _legend(rows, start, bottom + 2)
        bottom += _LINE * len(rows)
    for line in lines:
        bottom += _LINE
        parts.append(label(start, bottom - 1, line, fill="muted"))
    if chart.legend_below and not chart.caption:
        parts += _legend(rows, start, bottom + 2)
        bottom += _LINE * len(rows)
    wide = max([width, *(start + LETTER * len(line) for line in lines), *(row[-1][1] + start for row in rows)])
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {wide:.0f} {bottom + 6:.0f}",
        width=round(wide),
        height=round(bottom + 6),
        role="img",
        aria_label=chart.description or "chart",
        style="font: 12px system-ui, sans-serif; overflow: visible",
    )


def label(x: float, y: float, text: str, anchor: str = "start", fill: str = "ink", **more: object) -> str:
    """Words in a drawing."""
    return tag("text", escape(text), x=x, y=y, text_anchor=anchor, fill=f"var(--{fill})", **more)


def _rows(legend: Sequence[Key], width: float, single: bool) -> list[list[tuple[Key, float]]]:
    """Entries line by line, each with the place where it ends."""
    rows: list[list[tuple[Key, float]]] = []
    for key in legend:
        wide = (30 if key.shape in ("line", "dashes") else 18) + LETTER * len(key.name) + 10
        at = rows[-1][-1][1] if rows and not single else 0.0
        if not rows or single or at + wide > width:
            rows.append([(key, wide)])
        else:
            rows[-1].append((key, at + wide))
    return rows


def _legend(rows: Sequence[Sequence[tuple[Key, float]]], left: float, top: float) -> Iterator[str]:
    for number, row in enumerate(rows):
        at, middle = left, top + _LINE * number + 9
        for key, end in row:
            fill, text = f"var(--{key.colour})", 15.0
            if key.shape == "dot":
                yield tag("circle", cx=at + 4, cy=middle, r=4, fill=fill)
            elif key.shape == "square":
                yield tag("rect", x=at, y=middle - 5, width=10, height=10, fill=fill)
            else:
                dashes, text = ("5 4" if key.shape == "dashes" else None), 25.0
                yield _line(at, middle, at + 18, middle, key.colour, 2.0, stroke_dasharray=dashes)
            yield label(at + text, middle + 4, key.name)
            at = left + end


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str = "grid", width: float = 1.0, **more: object) -> str:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=f"var(--{stroke})", stroke_width=width, **more)


class _Canvas:
    """Marks in pixels."""

    def __init__(self, x: Axis, y: Axis, left: float, top: float) -> None:
        self.x, self.y, self.left, self.top = x, y, left, top
        self.right, self.bottom = left + x.length, top + y.length

    def across(self, value: float) -> float:
        return self.left + self.x.share(value) * self.x.length

    def up(self, value: float) -> float:
        return self.bottom - self.y.share(value) * self.y.length

    def ticks(self) -> Iterator[str]:
        for value, text in self.y.ticks:
            at = self.up(value)
            if self.y.grid:
                yield _line(self.left, at, self.right, at)
            yield label(self.left - 8, at + 4, text, "end", "muted" if self.y.named is None else "ink")
        for value, text in self.x.ticks:
            at = self.across(value)
            if self.x.opposite:
                yield label(at, self.top - 6, text, "middle")
                continue
            yield (
                _line(at, self.top, at, self.bottom)
                if self.x.grid
                else _line(at, self.bottom, at, self.bottom + 4, "muted")
            )
            yield label(at, self.bottom + 16, text, "middle", "muted" if self.x.named is None else "ink")

    def drawn(self, mark: Mark) -> list[str]:
        match mark:
            case Markers():
                return list(self._points(mark))
            case Polyline():
                style = {"stroke": f"var(--{mark.colour})", "stroke_width": mark.width}
                path = f"M{self._path(mark.x, mark.y)}"
                return [tag("path", d=path, fill="none", **style, stroke_dasharray=mark.dashes or None)]
            case Segments():
                ends = zip(mark.x, mark.y, mark.x_end, mark.y_end, strict=True)
                faint = mark.opacity if mark.opacity < 1 else None
                places = [(self.across(a), self.up(b), self.across(c), self.up(d)) for a, b, c, d in ends]
                return [_line(*place, mark.colour, mark.width, stroke_opacity=faint) for place in places]
            case Band():
                upper, lower = self._path(mark.x, mark.high), self._path(mark.x[::-1], mark.low[::-1])
                return [tag("path", d=f"M{upper} L{lower} Z", fill=f"var(--{mark.colour})", fill_opacity=0.17)]
            case Bar():
                x, y, title = self.across(mark.x), self.up(mark.y_end), _title(mark.title)
                size = {"width": self.across(mark.x_end) - x, "height": self.up(mark.y) - y}
                return [tag("rect", *title, x=x, y=y, **size, fill=f"var(--{mark.colour})")]
            case Words():
                aside = -7 if mark.left else 7
                place = self.across(mark.x) + aside, self.up(mark.y) + 4
                return [label(*place, mark.text, "end" if mark.left else "start")]
            case HeatMap():
                return [self._image(mark)] if mark.pixels else list(self._cells(mark))

    def _path(self, x: Sequence[float], y: Sequence[float]) -> str:
        return " L".join(f"{self.across(a):.1f} {self.up(b):.1f}" for a, b in zip(x, y, strict=True))

    def _points(self, mark: Markers) -> Iterator[str]:
        colour = f"var(--{mark.colour})"
        style = {"fill": colour} if mark.filled else {"fill": "none", "stroke": colour}
        for k, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
            title = _title(mark.titles[k] if mark.titles else "")
            yield tag("circle", *title, cx=self.across(x), cy=self.up(y), r=mark.radius, **style)

    def _cells(self, mark: HeatMap) -> Iterator[str]:
        wide, tall = (axis.length / abs(axis.high - axis.low) for axis in (self.x, self.y))
        gap = 1 if wide > 6 else 0
        for i, row in enumerate(mark.values):
            for j, value in enumerate(row):
                x, y, level = self.left + wide * j, self.top + tall * i, mark.level(value)
                shade = (
                    {"fill": "var(--grid)", "fill_opacity": 0.35}
                    if level is None
                    else {"fill": "var(--blue)", "fill_opacity": 0.06 + 0.94 * level}
                )
                title = _title(mark.titles[i][j] if mark.titles else "")
                yield tag("rect", *title, x=x, y=y, width=wide - gap, height=tall - gap, **shade)
                if mark.written:
                    ink = "paper" if level is not None and level > 0.55 else "ink"
                    place = x + (wide - gap) / 2, y + tall / 2 + 4
                    yield label(*place, short(value), "middle", ink, pointer_events="none")

    def _image(self, mark: HeatMap) -> str:
        place = {"x": self.left, "y": self.top, "width": self.x.length, "height": self.y.length}
        image = tag(
            "image",
            **place,
            href=f"data:image/png;base64,{base64.b64encode(_png(mark)).decode()}",
            preserveAspectRatio="none",
            style="image-rendering: pixelated",
        )
        return image + tag("rect", **place, fill="none", stroke="var(--grid)")


def _title(text: str) -> list[str]:
    return [tag("title", escape(text))] if text else []


def _png(mark: HeatMap) -> bytes:
    """One pixel per cell; it lies on light and on dark ground alike, since only its opacity changes."""
    lines = []
    for row in mark.values:
        pixels = bytearray([0])
        for value in row:
            pixels += bytes((*(_BLUE if value and value > 0 else _RED), round(255 * (mark.level(value) or 0.0))))
        lines.append(bytes(pixels))
    size = struct.pack(">IIBBBBB", len(mark.values[0]), len(mark.values), 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", size), (b"IDAT", zlib.compress(b"".join(lines), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
