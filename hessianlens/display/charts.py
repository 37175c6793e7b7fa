"""Kinds of chart over numeric axes: curves, dot plots, scatter plots, spectra, shares of a whole, timelines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from hessianlens.display.chart import (
    LETTER,
    SERIES,
    Axis,
    Band,
    Bar,
    ChartModel,
    Key,
    Mark,
    Markers,
    Picture,
    Polyline,
    Segments,
    Words,
    short,
    shorten_name,
)
from hessianlens.errors import check_that

_LOG_FLOOR = 1e-4
"""The smallest part of the largest value that the logarithmic axis of a curve goes down to."""
_ZERO_SHARE = 1e-9
"""Of the largest value: what is smaller, such as what rounding leaves of a zero, has no place on a logarithmic axis."""
_LOG_RATIO = 30.0
"""Largest over smallest value from which a timeline is logarithmic; the same between a value and a visible interval."""
_MOST_LETTERS = 30
"""Letters of a name beside a chart."""


@dataclass(frozen=True)
class Curve(Picture):
    """A function of a number, such as a density, with the band that it lies in.

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

    def chart(self) -> ChartModel:
        """The line over its band."""
        floor = max(max(self.y), 1e-300) * _LOG_FLOOR
        values = [v for v in (*self.y, *self.low, *self.high) if not self.log or v >= floor]
        x = Axis.around(self.x, self.across)
        if max(self.x) > min(self.x):
            x = replace(x, low=min(self.x), high=max(self.x))
        y = Axis.around(values if self.log else [*values, 0.0], self.up, 150, self.log, grid=True)
        marks: list[Mark] = [Band(self.x, self.low, self.high, "blue")] if self.low else []
        if self.zero and x.low < 0 < x.high:
            marks.append(Polyline([0.0, 0.0], [y.low, y.high], "muted", 1.2, "3 3"))
        return ChartModel(x, y, [*marks, Polyline(self.x, [y.clamp(v) for v in self.y], "blue")])


@dataclass(frozen=True)
class Dot:
    """A number and the ends of its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, ends: tuple[float, float] | None = None) -> Dot:
        """A number with an interval, or without."""
        if ends is None:
            return cls(value, value, value)
        check_that(isinstance(ends, tuple) and len(ends) == 2, "ends", ends, "a pair of numbers, or None")
        return cls(value, *ends)

    def __str__(self) -> str:
        return short(self.value) + (f" [{short(self.low)}, {short(self.high)}]" if self.high > self.low else "")


@dataclass(frozen=True)
class Dots(Picture):
    """Numbers with their intervals, one line per name.

    Attributes:
        names: What the lines are about.
        series: Numbers in the order of the names, by what they are; None where there is none.
        label: What the axis counts.
        log: Whether it is logarithmic; what is zero then, or nothing beside the largest, is an open dot at its edge.

    >>> picture = Dots(("q", "v"), {"full": (Dot(1.0, 0.5, 2.0), Dot.of(3.0))}, "norm")
    >>> picture.svg().count("<circle")
    2
    """

    names: tuple[str, ...]
    series: Mapping[str, Sequence[Dot | None]]
    label: str
    log: bool = True

    @cached_property
    def _floor(self) -> float:
        values = [dot.value for row in self.series.values() for dot in row if dot is not None]
        return _ZERO_SHARE * max(values, default=0.0)

    def _vanishes(self, dot: Dot) -> bool:
        return self.log and not (dot.value > 0 and dot.value >= self._floor)

    def _ends(self, dot: Dot) -> tuple[float, ...]:
        """The value, and ends that are not far off: an interval from one probe would leave no room for the rest."""
        ends = dot.low, dot.value, dot.high
        if not self.log:
            return ends
        return tuple(end for end in ends if dot.value / _LOG_RATIO <= end <= dot.value * _LOG_RATIO)

    def chart(self) -> ChartModel:
        """Lines below each other, one colour per series."""
        dots = [dot for row in self.series.values() for dot in row if dot is not None and not self._vanishes(dot)]
        x = Axis.around([end for dot in dots for end in self._ends(dot)], self.label, 250, self.log, grid=True)
        y = Axis.of_names([shorten_name(name, _MOST_LETTERS) for name in self.names], 20 * len(self.names), down=True)
        marks: list[Mark] = []
        for s, row in enumerate(self.series.values()):
            colour = SERIES[s % len(SERIES)]
            aside = (s - (len(self.series) - 1) / 2) * min(0.25, 0.6 / len(self.series))
            there = [(k + aside, dot, f"{self.names[k]}: {dot}") for k, dot in enumerate(row) if dot is not None]
            wide = [(at, dot) for at, dot, _ in there if dot.high > dot.low and not self._vanishes(dot)]
            places = [at for at, _ in wide]
            marks.append(Segments([dot.low for _, dot in wide], places, [dot.high for _, dot in wide], places, colour))
            for filled in (True, False):
                seen = [item for item in there if self._vanishes(item[1]) != filled]
                values = [dot.value if filled else x.low for _, dot, _ in seen]
                titles = [title for _, _, title in seen]
                marks.append(Markers(values, [at for at, _, _ in seen], colour, filled=filled, titles=titles))
        several = list(self.series) if len(self.series) > 1 else []
        return ChartModel(x, y, marks, [Key(name, SERIES[s % len(SERIES)]) for s, name in enumerate(several)])


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
    """Markers on logarithmic axes; those with a number that is zero, or nothing beside the others, are left out.

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
        """Markers that lie on the axes."""
        least_x, least_y = (_ZERO_SHARE * max((getattr(p, k) for p in self.points), default=0.0) for k in "xy")
        return [p for p in self.points if p.x > 0 and p.y > 0 and p.x >= least_x and p.y >= least_y]

    def chart(self) -> ChartModel:
        """Dots, one colour per kind."""
        seen = self.seen
        colours = {k: SERIES[n % len(SERIES)] for n, k in enumerate(dict.fromkeys(p.kind for p in seen))}
        x = Axis.around([p.x for p in seen], self.across, 270, log=True, grid=True)
        y = Axis.around([p.y for p in seen], self.up, 200, log=True, grid=True)
        marks: list[Mark] = []
        for kind, colour in colours.items():
            own = [p for p in seen if p.kind == kind]
            titles = [f"{p.name}: {short(p.x)}, {short(p.y)}" for p in own]
            marks.append(Markers([p.x for p in own], [p.y for p in own], colour, 4.0, titles=titles))
        for p in seen:
            if p.marked:
                left = x.share(p.x) * x.length + LETTER * len(p.name) > x.length + 12
                marks.append(Words(p.x, p.y, p.name, left))
        return ChartModel(x, y, marks, [Key(*item) for item in colours.items()] if len(colours) > 1 else [])


@dataclass(frozen=True)
class Spikes(Picture):
    """Eigenvalues as lines from zero, blue above and red below.

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

    def ranks(self) -> list[int]:
        """Where each stands: by its rank, or by that of its size among those of its sign."""
        order = range(len(self.values))
        if not self.paired:
            return list(order)
        counted, found = {True: 0, False: 0}, [0] * len(self.values)
        for k in sorted(order, key=lambda k: -abs(self.values[k])):
            found[k] = counted[self.values[k] > 0]
            counted[self.values[k] > 0] += 1
        return found

    def chart(self) -> ChartModel:
        """Lines and dots over an axis at zero."""
        ranks = self.ranks()
        last = max(ranks, default=0)
        x = Axis(-0.5, last + 0.5, label="rank by size" if self.paired else "rank", named=())
        y = Axis.around([*self.values, 0.0], self.label, 150, grid=True)
        step = x.length / (last + 1)
        errors = self.errors or [0.0] * len(self.values)
        marks: list[Mark] = [Polyline([x.low, x.high], [0.0, 0.0], "muted", 1.0)]
        for positive, colour in ((True, "blue"), (False, "red")):
            own = [k for k, value in enumerate(self.values) if (value > 0) == positive]
            at, values = [float(ranks[k]) for k in own], [self.values[k] for k in own]
            width = max(min(step / 3, 3.0), 0.7)
            marks.append(Segments(at, [0.0] * len(at), at, values, colour, width, opacity=0.55))
            lows, highs = ([self.values[k] + sign * errors[k] for k in own] for sign in (-1, 1))
            marks += [Segments(at, lows, at, highs, colour)] if any(errors[k] for k in own) else []
            titles = [short(self.values[k], 5) + (f" ± {errors[k]:.1e}" if self.errors else "") for k in own]
            marks.append(Markers(at, values, colour, max(min(step / 3, 3.5), 1.0), titles=titles))
        return ChartModel(x, y, marks, caption=self.label)


@dataclass(frozen=True)
class Share:
    """A piece of a whole: its name, its size in any unit, the size as a text, a colour of the palette."""

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

    >>> parts = Share("negative", 0.25, "25 %", "red"), Share("positive", 0.75, "75 %", "blue")
    >>> Shares(parts, "").svg().count("<rect")
    4
    """

    shares: Sequence[Share]
    label: str

    def chart(self) -> ChartModel:
        """The bar, and one line per piece."""
        ends, legend = [0.0], []
        for share in self.shares:
            ends.append(ends[-1] + max(share.size, 0.0))
            legend.append(Key(f"{share.name}: {share.text}", share.colour, "square"))
        bars = [
            Bar(start, end, 0.0, 1.0, share.colour, key.name)
            for share, key, (start, end) in zip(self.shares, legend, pairwise(ends), strict=True)
        ]
        x, y = Axis(0.0, ends[-1] or 1.0, length=330, named=()), Axis(0.0, 1.0, length=20, named=())
        return ChartModel(x, y, bars, legend, legend_below=True, caption=self.label)


@dataclass(frozen=True)
class Line:
    """One line over the steps of a run.

    Attributes:
        name: What it is.
        steps: Where.
        readings: Value, lower and upper end at each step.
        limit: Whether it is a threshold: dashed, without an interval.
    """

    name: str
    steps: Sequence[int]
    readings: Sequence[tuple[float, float, float]]
    limit: bool = False

    def marks(self, colour: str, y: Axis) -> list[Mark]:
        """The line, its points and its band; what is not finite is left out."""
        seen = [(float(s), r) for s, r in zip(self.steps, self.readings, strict=True) if math.isfinite(r[0])]
        steps, values = [step for step, _ in seen], [y.clamp(r[0]) for _, r in seen]
        if self.limit:
            return [Polyline(steps, values, colour, dashes="5 4")] if seen else []
        found: list[Mark] = []
        if any(r[1] < r[2] for _, r in seen):
            found.append(Band(steps, [r[1] for _, r in seen], [r[2] for _, r in seen], colour))
        found += [Polyline(steps, values, colour)] if seen else []
        return [*found, Markers(steps, values, colour, 2.2)]


@dataclass(frozen=True)
class Timeline(Picture):
    """Lines over the steps of a run, with bands for the intervals.

    Attributes:
        lines: What is drawn; at most six, so that colours tell them apart.
        up: What the values are.

    >>> line = Line("model", [1, 2, 4], [(v, v, v) for v in (1.0, 2.0, 1.5)])
    >>> Timeline([line], "largest eigenvalue").svg().count("<path")
    1
    """

    lines: Sequence[Line]
    up: str

    def chart(self) -> ChartModel:
        """The lines above their key; values far apart are on a logarithmic axis."""
        steps = [step for line in self.lines for step in line.steps] or [0]
        x = Axis(float(min(steps)), float(max(max(steps), min(steps) + 1)), label="steps", length=270)
        values = [r[0] for line in self.lines for r in line.readings if math.isfinite(r[0])]
        log = bool(values) and min(values) > 0 and max(values) > _LOG_RATIO * min(values)
        # Zero is the ground of what is not on a logarithmic axis; nothing but zeros lie on it.
        ground = [] if log else [0.0] if any(values) else [0.0, 1.0]
        y = Axis.around([*values, *ground], self.up, 160, log, grid=True)
        colours = iter(SERIES * (1 + len(self.lines) // len(SERIES)))
        marks, legend = list[Mark](), []
        for line in self.lines:
            colour = "muted" if line.limit else next(colours)
            marks += line.marks(colour, y)
            legend.append(Key(shorten_name(line.name, 40), colour, "dashes" if line.limit else "line"))
        return ChartModel(x, y, marks, legend, legend_below=True)
