"""A number that was measured: its value, its interval and how it was obtained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.display import Curve, DisplayableRows, Dot, Dots, Picture
from hessianlens.errors import check_that, check_whole, describe_value, expect
from hessianlens.sizes import number_of
from hessianlens.spectra.intervals import check_level, squared_lengths, student

EXACT_METHODS = ("exact", "basis", "dense")
"""No sampling: the operator's own answer, every basis vector, or the dense matrix."""


_DRAWN = 400
"""Entries of a vector that are drawn, evenly over their sizes."""
FEW = 10
"""Fewer samples than this are said to be few: what is rare in them may not have been seen at all."""


@dataclass(frozen=True, repr=False)
class Estimate(DisplayableRows):
    """A value with its standard error and its interval, which is printed at 95 %.

    A norm's interval is made for the skewed law of squared lengths: of 95 % it covers 93 to 98 % with three probes or
    more (`hessianlens.spectra.intervals` says where and how well). All other intervals are Student's,
    ``value ± t stderr``, which takes the mean over the probes as normal: right for traces and shares of spectra
    without a dominant eigenvalue, but the trace of a matrix of rank one is missed by 18 % of all intervals from 4
    probes and by 9 % from 20, mostly because they are too low.

    With fewer than ten samples, "few" is printed after their number: the interval then relies on what such samples
    usually look like.

    Attributes:
        value: The estimate.
        stderr: Its standard error; 0 for an exact value, infinite for a norm from one probe.
        probes: Number of vectors the operator was multiplied with; 0 if the operator itself knew the answer.
        seed: Seed of the probes; None if nothing was drawn.
        method: How it was found; "exact", "basis" and "dense" are free of sampling error.
        dof: Degrees of freedom of the standard error; ``probes - 1`` if omitted.
        skewed: Whether the value is the root of a mean of squared lengths, as norms are.
        sampled: Share of the squared value that was sampled, where the rest of it is known exactly.
        bias: Bound of the error that no number of probes removes; both ends of the interval are moved out by it.

    >>> estimate = Estimate(3.2141, 0.0372, probes=20, seed=0, method="hutchinson", skewed=True)
    >>> print(estimate)
    3.21 [3.15, 3.33] (20 probes)
    >>> estimate.interval(0.9), estimate.relative_width()
    ((3.159, 3.303), 0.02804)
    >>> print(Estimate.exactly(3.2141))
    3.2141 (exact)
    """

    value: float
    stderr: float
    probes: int
    seed: int | None = None
    method: str = "hutchinson"
    dof: int | None = None
    skewed: bool = False
    sampled: float = 1.0
    bias: float = 0.0

    def __post_init__(self) -> None:
        """Numbers are numbers; those that are not known are NaN."""
        for name, number in (("value", self.value), ("stderr", self.stderr)):
            real = isinstance(number, Real) and not isinstance(number, bool)
            check_that(real, name, number, "a number")
        check_whole("probes", self.probes, 0)
        if self.dof is not None:
            check_whole("dof", self.dof, 0)
        check_that(isinstance(self.method, str), "method", self.method, "a text")

    @classmethod
    def exactly(cls, value: float, probes: int = 0, method: str = "exact") -> Self:
        """A value without sampling error."""
        check_that(isinstance(value, Real), "value", value, "a number")
        return cls(float(value), 0.0, probes, None, method)

    @classmethod
    def from_samples(cls, samples: Float[Tensor, "samples"], probes: int, seed: int | None, method: str) -> Estimate:
        """Mean of independent samples, with standard error ``std / sqrt(samples)``.

        >>> print(Estimate.from_samples(torch.tensor([1.0, 2.0, 3.0]), 3, 0, "hutchinson"))
        2.0 [-0.5, 4.5] (3 probes: few)
        """
        check_dense("samples", samples)
        shape = tuple(samples.shape)
        expect(samples.ndim == 1 and shape != (0,), f"samples: got shape {shape}, expected a vector of samples.")
        expect(not samples.is_complex(), f"samples: got dtype {samples.dtype}, expected real numbers.")
        samples = samples.detach().double()
        value, stderr = mean_and_stderr(samples[:, None])
        return cls(float(value[0]), float(stderr[0]), probes, seed, method, len(samples) - 1)

    @property
    def exact(self) -> bool:
        """Whether the value is free of sampling error."""
        return self.method in EXACT_METHODS

    @property
    def samples(self) -> int:
        """Number of independent samples in the standard error."""
        return self.probes if self.dof is None else self.dof + 1

    @property
    def few(self) -> bool:
        """Whether there are fewer than ten samples."""
        return not self.exact and self.samples < FEW

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval at this level."""
        check_level(level)
        if self.skewed and self.value > 0:
            if not self.stderr:
                return self.value, self.value
            low, high = squared_lengths(level, self.samples, 2 * self.stderr / (self.value * self.sampled))
            squares = (1 + self.sampled * (end - 1) for end in (low, high))
            low, high = (math.sqrt(max(square, 0.0)) for square in squares)
            return self.value * low, self.value * high
        half = (student(level, self.samples - 1) * self.stderr if self.stderr else 0.0) + self.bias
        return self.value - half, self.value + half

    def relative_width(self, level: float = 0.95) -> float:
        """Half the width of the interval over the size of the value; 0 for an exact one."""
        low, high = self.interval(level)
        if high == low:
            return 0.0
        return (high - low) / (2 * abs(self.value)) if self.value else math.inf

    def __float__(self) -> float:
        return self.value

    def row(self) -> dict[str, Any]:
        """Everything that is known, by name."""
        low, high = self.interval()
        return {
            "value": self.value,
            "low": low,
            "high": high,
            "stderr": self.stderr,
            "method": self.method,
            "probes": self.probes,
            "exact": self.exact,
        }

    def dot(self) -> Dot:
        """The value and its interval, to be drawn."""
        return Dot.of(self.value, None if self.exact else self.interval())

    def _records(self) -> list[dict[str, Any]]:
        return [self.row()]

    def _picture(self, asked: bool) -> Picture | None:
        """The value in its interval, if there is one to see."""
        if not asked and (self.exact or not all(map(math.isfinite, self.interval()))):
            return None
        return Dots(("value",), {"value": (self.dot(),)}, "95 % interval", log=False)

    def __str__(self) -> str:
        if self.exact:
            return f"{self.value:.6g} (exact)"
        return f"{with_interval(self.value, *self.interval())} ({_counted(self.probes, self.few)})"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class VectorEstimate(DisplayableRows):
    """An `Estimate` of every entry of a vector, from the same probes."""

    value: Float[Tensor, "n"]
    stderr: Float[Tensor, "n"]
    probes: int
    seed: int | None
    method: str
    dof: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the values are free of sampling error."""
        return self.method in EXACT_METHODS

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
        """The interval of every entry at this level; they do not hold jointly."""
        check_level(level)
        half = self._half_widths(level)
        return self.value - half, self.value + half

    def _half_widths(self, level: float) -> Float[Tensor, "n"]:
        if self.exact:
            return torch.zeros_like(self.stderr)
        return student(level, self.probes - 1 if self.dof is None else self.dof) * self.stderr

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: int) -> Estimate:
        if isinstance(index, bool) or not isinstance(index, Integral) or not -len(self) <= index < len(self):
            raise IndexError(f"index: got {describe_value(index)}, expected a whole number below {len(self)}.")
        return Estimate(
            float(self.value[index]), float(self.stderr[index]), self.probes, self.seed, self.method, self.dof
        )

    def _records(self) -> list[dict[str, Any]]:
        low, high = self.interval()
        columns = (self.value, low, high, self.stderr)
        return [
            {"entry": k, "value": v, "low": a, "high": b, "stderr": s}
            for k, (v, a, b, s) in enumerate(zip(*(c.tolist() for c in columns), strict=True))
        ]

    def _picture(self, asked: bool) -> Picture | None:
        """The entries by size, in their intervals."""
        order = self.value.argsort()
        kept = torch.linspace(0, len(order) - 1, min(len(order), _DRAWN), device=order.device).round().long()
        low, high = ([] if self.exact else end[order][kept].tolist() for end in self.interval())
        return Curve(kept.double().tolist(), self.value[order][kept].tolist(), "entries by size", "value", low, high)

    def __str__(self) -> str:
        low, high = float(self.value.min()), float(self.value.max())
        if self.exact:
            return f"{len(self)} values in [{low:.4g}, {high:.4g}] (exact)"
        widest, counted = float(self._half_widths(0.95).max()), _counted(self.probes, self[0].few)
        return f"{len(self)} values in [{low:.4g}, {high:.4g}] (95 % intervals of ± {widest:.2g} or less, {counted})"

    __repr__ = __str__


def mean_and_stderr(samples: Float[Tensor, "samples n"]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Mean over the rows, and ``std / sqrt(rows)``; a single row has no standard error (NaN)."""
    mean = samples.mean(0)
    if len(samples) < 2:
        return mean, torch.full_like(mean, math.nan)
    return mean, samples.std(0) / math.sqrt(len(samples))


def with_interval(value: float, low: float, high: float) -> str:
    """A value and its interval, rounded to the first digit of the nearer end's distance, or two if it is below 4.

    >>> with_interval(3.2141, 3.137, 3.347), with_interval(3.2141, 3.19, 3.25), with_interval(4187.0, 3400.0, 6100.0)
    ('3.21 [3.14, 3.35]', '3.214 [3.190, 3.250]', '(4.2 [3.4, 6.1])e+03')
    """
    near = min(value - low, high - value)
    if not all(map(math.isfinite, (value, low, high))) or near <= 1e-9 * abs(value):
        return f"{value:.10g} [{low:.10g}, {high:.10g}]"
    first = _exponent(near)
    digits = 1 - first if near / 10.0**first < 3.95 else -first
    magnitude = _exponent(max(abs(low), abs(high)))
    power = 0 if -3 <= magnitude < 4 and digits >= 0 else magnitude
    digits = max(0, digits + power)
    body, *ends = (f"{number / 10.0**power:.{digits}f}" for number in (value, low, high))
    body = f"{body} [{', '.join(ends)}]"
    return f"({body})e{power:+03d}" if power else body


def ends_in_percent(value: float, low: float, high: float) -> str:
    """The ends of an interval, from the value and in percent of it; from three times the value on as a multiple.

    >>> ends_in_percent(3.2141, 3.137, 3.347), ends_in_percent(1.0, 0.446, 31.9)
    ('-2.4% +4.1%', '-55% x32')
    """
    sizes = (round(100 * abs(end / value - 1), 2) for end in (low, high))
    below, above = (f"{size:.2g}%" if size < 99.5 else f"{size:.0f}%" for size in sizes)
    return f"-{below} " + (f"+{above}" if high < 3 * value else f"x{high / value:.2g}")


def _counted(probes: int, few: bool) -> str:
    """How many probes, and whether that is few."""
    return f"{number_of(probes, 'probe')}{': few' if few else ''}"


def _exponent(number: float) -> int:
    return math.floor(math.log10(abs(number)))


@dataclass(frozen=True, repr=False)
class PowerProduct(Estimate):
    """``prod_i s_i^(p_i)`` of independent estimates ``s_i``.

    On the scale of logarithms, where it is a sum, the distance to either end is the root of the sum of the squares of
    the factors' own distances, each to the end that moves the product that way (Zou and Donner 2008). A factor whose
    interval reaches zero has no logarithm there: Student's interval from the first derivatives is used instead.
    Ratios of norms are covered by 93 % or more at 95 % with 3 to 50 probes, whatever the two spectra.

    Attributes:
        factors: The estimates with their powers.

    >>> norms = [Estimate(v, 0.1, 20, skewed=True) for v in (3.0, 2.0)]
    >>> print(PowerProduct.of(1.5, list(zip(norms, (1, -1)))))
    1.50 [1.29, 1.72] (20 probes)
    """

    factors: tuple[tuple[Estimate, float], ...] = ()

    @classmethod
    def of(cls, value: float, factors: Sequence[tuple[Estimate, float]]) -> Estimate:
        """The product, whose value the caller knows with its sign; exact if all factors are."""
        sampled = [(s, power) for s, power in factors if not s.exact]
        if not sampled:
            return Estimate.exactly(value)
        relative = math.hypot(*(power * s.stderr / s.value if s.value else 0.0 for s, power in sampled))
        probes, dof = min(s.probes for s, _ in sampled), min(s.samples for s, _ in sampled) - 1
        stderr = abs(value) * relative if relative else 0.0
        return cls(value, stderr, probes, None, "delta", dof, factors=tuple(sampled))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval at this level."""
        inner = [(s.interval(level), s.value, power) for s, power in self.factors]
        if not math.isfinite(self.value) or any(low * high <= 0 for (low, high), _, _ in inner):
            return super().interval(level)
        moves = [sorted(power * math.log(end / value) for end in ends) for ends, value, power in inner]
        down, up = (math.hypot(*side) for side in zip(*moves, strict=True))
        low, high = sorted((self.value * math.exp(-down), self.value * math.exp(up)))
        return low, high
