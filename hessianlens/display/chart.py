"""A chart, stated once: axes, and marks in data coordinates. `svg` and `matplotlib_axes` render it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from hessianlens.errors import check_that, needs_extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LETTER = 6.9
"""Pixels that a letter of twelve pixels takes on average, generously."""
SERIES = ("blue", "orange", "green", "purple", "red", "sky")
"""Colours of the palette in the order in which series take them."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Tick = tuple[float, str]


def short(value: float | None, digits: int = 3) -> str:
    """A number with few digits.

    >>> short(0.00012345), short(1234567.0), short(-0.5), short(None), short(float("nan"))
    ('1.23e−4', '1.23e6', '−0.5', '–', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if -4 < int(exponent) < 6 or not value:
        text = f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    else:
        text = f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return text.replace("-", "−")


def shorten_name(text: str, most: int) -> str:
    """A name that fits, with its beginning and its end.

    >>> shorten_name("decoder.layer11.attn.query.bias", 20)
    'decoder.la…uery.bias'
    """
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


@dataclass(frozen=True)
class Axis:
    """An axis from `low`, at the left or at the bottom, to `high`.

    Attributes:
        low: The first number on it; above `high` on an axis that counts downwards.
        high: The last one.
        log: Whether it is logarithmic.
        label: The quantity.
        length: Pixels, in a page.
        named: Places with texts in place of round numbers; an empty tuple leaves the axis bare.
        grid: Whether lines across the chart mark the ticks.
        opposite: Whether the ticks of a horizontal axis stand above the chart.
        most: Round numbers beside it, at most.

    >>> axis = Axis(0.01, 100.0, log=True)
    >>> axis.share(1.0), [text for _, text in axis.ticks]
    (0.5, ['0.01', '0.1', '1', '10', '100'])
    """

    low: float
    high: float
    log: bool = False
    label: str = ""
    length: float = 290.0
    named: tuple[Tick, ...] | None = None
    grid: bool = False
    opposite: bool = False
    most: int = 5

    @classmethod
    def around(
        cls, values: Iterable[float], label: str = "", length: float = 290.0, log: bool = False, grid: bool = False
    ) -> Axis:
        """An axis with room for these values; a logarithmic one for those above zero."""
        seen = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(seen), max(seen)) if seen else (1.0, 1.0)
        if log:
            if high / low < 1.5:
                low, high = low / 1.6, high * 1.6
            room = (high / low) ** 0.05
            return cls(low / room, high * room, True, label, length, grid=grid)
        if high == low:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        room = 0.05 * (high - low)
        return cls(low - room, high + room, False, label, length, grid=grid)

    @classmethod
    def of_names(cls, names: Sequence[str], length: float, down: bool = False, opposite: bool = False) -> Axis:
        """One place for every name, from the top where it goes `down`."""
        ends = (len(names) - 0.5, -0.5) if down else (-0.5, len(names) - 0.5)
        named = tuple((float(k), name) for k, name in enumerate(names) if name)
        return cls(*ends, length=length, named=named, opposite=opposite)

    def clamp(self, value: float) -> float:
        """A number on the axis: that at its end for those beyond it."""
        least, largest = sorted((self.low, self.high))
        return self.low if math.isnan(value) else min(max(value, least), largest)

    def share(self, value: float) -> float:
        """Where a number lies, from 0 to 1."""
        value = self.clamp(value)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)  # their quotient may be beyond all numbers
            return (math.log(value) - low) / (high - low)
        return (value - self.low) / (self.high - self.low)

    @cached_property
    def ticks(self) -> Sequence[Tick]:
        """Round numbers on the axis, with their texts."""
        if self.named is not None:
            return self.named
        return self._powers() if self.log else self._steps()

    def _powers(self) -> list[Tick]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last > first:
            every = math.ceil((last - first + 1) / self.most)
            return [(10.0**p, _power(p)) for p in range(first, last + 1, every)]
        decade = math.floor(math.log10(self.low))
        found = [m * 10.0**p for p in range(decade, decade + 3) for m in (1, 2, 3, 5)]
        return [(v, short(v)) for v in found if self.low <= v <= self.high][: self.most]

    def _steps(self) -> list[Tick]:
        rough = (self.high - self.low) / self.most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        count = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [(k * step, short(k * step, 4) if k else "0") for k in count]


def _power(exponent: int) -> str:
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:g}"
    return f"10{str(exponent).translate(_SUPERSCRIPT)}"


@dataclass(frozen=True)
class Markers:
    """Dots, filled or open, with a text each that a pointer brings up."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    radius: float = 3.2
    filled: bool = True
    titles: Sequence[str] = ()


@dataclass(frozen=True)
class Polyline:
    """A line through points."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    width: float = 1.6
    dashes: str = ""


@dataclass(frozen=True)
class Segments:
    """Straight lines from ``(x, y)`` to ``(x_end, y_end)``."""

    x: Sequence[float]
    y: Sequence[float]
    x_end: Sequence[float]
    y_end: Sequence[float]
    colour: str
    width: float = 1.6
    opacity: float = 1.0


@dataclass(frozen=True)
class Band:
    """What lies between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    colour: str


@dataclass(frozen=True)
class Bar:
    """A filled rectangle."""

    x: float
    x_end: float
    y: float
    y_end: float
    colour: str
    title: str = ""


@dataclass(frozen=True)
class Words:
    """A text beside a point, to the right of it or to the left."""

    x: float
    y: float
    text: str
    left: bool = False


@dataclass(frozen=True)
class HeatMap:
    """A matrix as cells ``[row, column]`` around the whole numbers, darker where the entry is larger in size.

    Attributes:
        values: The matrix; None or NaN where there is nothing.
        least: The size that stays white, on a logarithmic scale; what is zero is blank.
        largest: The size that is darkest.
        log: Whether darkness goes with the logarithm.
        signed: Whether negative entries are red.
        titles: A text for every cell that a pointer brings up.
        written: Whether the numbers stand in the cells.
        pixels: Whether it is one image with a pixel for every cell.
    """

    values: Sequence[Sequence[float | None]]
    least: float
    largest: float
    log: bool = True
    signed: bool = False
    titles: Sequence[Sequence[str]] = ()
    written: bool = False
    pixels: bool = False

    def level(self, value: float | None) -> float | None:
        """How dark a cell is, from 0 to 1; None where it is blank."""
        if value is None or not math.isfinite(value) or (self.log and value == 0):
            return None
        if not self.log:
            return abs(value) / self.largest
        return max(0.0, 1 - math.log(self.largest / abs(value)) / math.log(self.largest / self.least))


Mark = Markers | Polyline | Segments | Band | Bar | Words | HeatMap


@dataclass(frozen=True)
class Key:
    """An entry of the legend; `shape` is "dot", "line", "dashes" or "square"."""

    name: str
    colour: str
    shape: str = "dot"


@dataclass(frozen=True)
class ChartModel:
    """Axes, marks and a legend.

    Attributes:
        x: The horizontal axis.
        y: The vertical axis.
        marks: In the order in which they are drawn.
        legend: Its entries.
        legend_below: Whether it stands below the chart, one entry per line.
        caption: The quantity where the axes do not name it.
    """

    x: Axis
    y: Axis
    marks: Sequence[Mark]
    legend: Sequence[Key] = ()
    legend_below: bool = False
    caption: str = ""

    @property
    def description(self) -> str:
        """The caption, or the quantities on the axes."""
        return self.caption or " over ".join(filter(None, (self.y.label, self.x.label)))


class Picture(ABC):
    """Numbers and names that state a chart; nothing is computed for it."""

    @abstractmethod
    def chart(self) -> ChartModel:
        """The chart."""

    def svg(self) -> str:
        """An inline drawing of a fixed size, with colours that follow the page."""
        from hessianlens.display.svg import render

        return render(self.chart())

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw on these axes, or on those of a new figure.

        Args:
            ax: Matplotlib's axes.
        """
        with needs_extra("", "plot()"):
            from matplotlib import axes, pyplot

        from hessianlens.display.matplotlib_axes import draw, figure_size

        chart = self.chart()
        if ax is None:
            ax = pyplot.subplots(figsize=figure_size(chart), layout="constrained")[1]
        check_that(isinstance(ax, axes.Axes), "ax", ax, "axes of matplotlib, or None for those of a new figure")
        draw(chart, ax)
        return ax
