"""A number that was measured: its value, its standard error and how it was obtained."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real

import torch
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import check_that, check_whole, expect, shown

EXACT_METHODS = ("exact", "basis", "dense")
"""No sampling: the operator's own answer, every basis vector, or the dense matrix."""


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error.

    The interval is ``value ± t stderr`` with ``t`` the quantile of Student's distribution. It takes the mean over the
    probes as normal. A matrix that one eigenvalue dominates gives skewed samples: from 20 probes of a matrix of rank
    one, the 95 % interval of a norm or a trace covers the truth in about 90 % of all runs.

    Attributes:
        value: The estimate.
        stderr: Its standard error; 0 for an exact value.
        probes: Number of vectors the operator was multiplied with; 0 if the operator itself knew the answer.
        seed: Seed of the probes; None if nothing was drawn.
        method: How it was found; "exact", "basis" and "dense" are free of sampling error.
        dof: Degrees of freedom of the standard error; ``probes - 1`` if omitted.

    >>> estimate = Estimate(3.2141, 0.0372, probes=20, seed=0, method="hutchinson")
    >>> print(estimate)
    3.21 ± 0.04 (20 probes)
    >>> estimate.interval(0.95)
    (3.136, 3.292)
    >>> print(Estimate.exactly(3.2141))
    3.2141 (exact)
    """

    value: float
    stderr: float
    probes: int
    seed: int | None
    method: str
    dof: int | None = None

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
    def exactly(cls, value: float, probes: int = 0, method: str = "exact") -> Estimate:
        """A value without sampling error."""
        check_that(isinstance(value, Real), "value", value, "a number")
        return cls(float(value), 0.0, probes, None, method)

    @classmethod
    def from_samples(cls, samples: Float[Tensor, "samples"], probes: int, seed: int | None, method: str) -> Estimate:
        """Mean of independent samples, with standard error ``std / sqrt(samples)``.

        >>> print(Estimate.from_samples(torch.tensor([1.0, 2.0, 3.0]), 3, 0, "hutchinson"))
        2.0 ± 0.6 (3 probes)
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

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The two-sided confidence interval of Student's t at this level."""
        half = _quantile(self, level) * self.stderr
        return self.value - half, self.value + half

    def relative_width(self, level: float = 0.95) -> float:
        """Half the width of the interval over the value."""
        low, high = self.interval(level)
        return (high - low) / (2 * self.value) if self.value else 0.0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        if self.exact:
            return f"{self.value:.6g} (exact)"
        return f"{with_error(self.value, self.stderr)} ({self.probes} probes)"


@dataclass(frozen=True, eq=False)
class VectorEstimate:
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
        half = _quantile(self, level) * self.stderr
        return self.value - half, self.value + half

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: int) -> Estimate:
        if isinstance(index, bool) or not isinstance(index, Integral) or not -len(self) <= index < len(self):
            raise IndexError(f"index: got {shown(index)}, expected a whole number below {len(self)}.")
        return Estimate(
            float(self.value[index]), float(self.stderr[index]), self.probes, self.seed, self.method, self.dof
        )

    def __str__(self) -> str:
        low, high = float(self.value.min()), float(self.value.max())
        error = "exact" if self.exact else f"standard errors up to {float(self.stderr.max()):.2g}, {self.probes} probes"
        return f"{len(self)} values in [{low:.4g}, {high:.4g}] ({error})"

    __repr__ = __str__


def mean_and_stderr(samples: Float[Tensor, "samples n"]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Mean over the rows, and ``std / sqrt(rows)``; a single row has no standard error (NaN)."""
    mean = samples.mean(0)
    if len(samples) < 2:
        return mean, torch.full_like(mean, math.nan)
    return mean, samples.std(0) / math.sqrt(len(samples))


def _quantile(estimate: Estimate | VectorEstimate, level: float) -> float:
    inside = isinstance(level, Real) and 0 < level < 1
    check_that(inside, "level", level, "a probability between 0 and 1, e.g. 0.95")
    if estimate.exact:
        return 0.0
    dof = estimate.probes - 1 if estimate.dof is None else estimate.dof
    return float(stdtrit(dof, 0.5 + level / 2))


def with_error(value: float, stderr: float) -> str:
    """A value and its error, rounded to the first digit of the error (two digits if the first is a 1).

    >>> with_error(3.2141, 0.0372), with_error(3.2141, 0.0142), with_error(4187.0, 484.0)
    ('3.21 ± 0.04', '3.214 ± 0.014', '(4.2 ± 0.5)e+03')
    """
    if not (math.isfinite(value) and math.isfinite(stderr)) or stderr <= 1e-9 * abs(value):
        return f"{value:.10g} ± {stderr:.1g}"
    magnitude = max(_exponent(value), _exponent(stderr)) if value else _exponent(stderr)
    digits = _decimals(stderr)
    power = 0 if -3 <= magnitude < 4 and digits >= 0 else magnitude
    value, stderr, digits = value / 10.0**power, stderr / 10.0**power, max(0, digits + power)
    body = f"{value:.{digits}f} ± {stderr:.{digits}f}"
    return f"({body})e{power:+03d}" if power else body


def _decimals(stderr: float) -> int:
    """Decimals up to the first digit of the error, or the second if the first is a 1."""
    first = _exponent(stderr)
    return 1 - first if stderr / 10.0**first < 1.95 else -first


def _exponent(number: float) -> int:
    return math.floor(math.log10(abs(number)))
