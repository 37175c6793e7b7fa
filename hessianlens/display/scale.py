"""Where a number lies on an axis, and which numbers are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


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


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high` between two places in pixels.

    >>> axis = Scale(0.01, 100.0, 0.0, 200.0, log=True)
    >>> axis(1.0), [text for _, text in axis.ticks()]
    (100.0, ['0.01', '0.1', '1', '10', '100'])
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    @classmethod
    def around(cls, values: Iterable[float], start: float, stop: float, log: bool = False) -> Scale:
        """An axis with room for these values; a logarithmic one for those above zero."""
        seen = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
        low, high = (min(seen), max(seen)) if seen else (1.0, 1.0)
        if log:
            if high / low < 1.5:
                low, high = low / 1.6, high * 1.6
            room = (high / low) ** 0.05
            return cls(low / room, high * room, start, stop, True)
        if high == low:
            low, high = low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2
        room = 0.05 * (high - low)
        return cls(low - room, high + room, start, stop)

    def __call__(self, value: float) -> float:
        """The place of a number, at the ends if it lies beyond them."""
        if math.isnan(value):
            return self.start
        value = min(max(value, self.low), self.high)
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            share = (math.log(value) - low) / (high - low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Round numbers on the axis, with their texts."""
        return self._powers(most) if self.log else self._steps(most)

    def _powers(self, most: int) -> list[tuple[float, str]]:
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        if last > first:
            every = math.ceil((last - first + 1) / most)
            powers = range(first, last + 1, every)
            return [(10.0**p, _power(p)) for p in powers]
        decade = math.floor(math.log10(self.low))
        found = [m * 10.0**p for p in range(decade, decade + 3) for m in (1, 2, 3, 5)]
        return [(v, short(v)) for v in found if self.low <= v <= self.high][:most]

    def _steps(self, most: int) -> list[tuple[float, str]]:
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
        count = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [(k * step, short(k * step, 4) if k else "0") for k in count]


def _power(exponent: int) -> str:
    if -3 <= exponent <= 4:
        return f"{10.0**exponent:g}"
    return f"10{str(exponent).translate(_SUPERSCRIPT)}"
