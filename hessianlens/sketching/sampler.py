"""Samples of a squared norm, drawn in two stages: a pilot estimates how many it takes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlens.spectra import Estimate
from hessianlens.spectra.norms import norm_from_squares

PILOT = 8
"""Random matrices, or vectors, of the pilot."""
LEAST = 10
"""Samples that an estimate has at least."""
MOST = 10**7
"""Samples beyond which nothing is planned."""
_SURE = 4 * PILOT
"""Samples up to which a pilot is believed that was made before its own directions were taken out."""

OnProbes = Callable[[int], None]
"""Called with the number of probes made."""


class Sampler(ABC):
    """Independent samples of what is not known of a squared norm.

    Attributes:
        name: What its estimates are called.
        seed: Seed of the probes.
        drawn: How many probes were drawn in all.
        squares: The samples so far.
        known: The part of the square that is known.
        unit: What the norm is measured in.
        probe_cost: Multiply-adds of a sample.
        complete: Probes that make up a basis, so that their sum is exact.
    """

    name: str
    probe_cost: float
    complete: int
    unit: float = 1.0
    known: float = 0.0

    def __init__(self, seed: int, on_probes: OnProbes) -> None:
        self.seed, self.drawn, self._on_probes = seed, 0, on_probes
        self.squares = torch.zeros(0, dtype=torch.float64, device="cpu")

    def draw(self, count: int) -> None:
        """So many further samples."""
        self.squares = torch.cat([self.squares, self._draw(count).double().cpu()])
        self.drawn += count

    def pilot(self) -> Tensor:
        """Samples that decide how to go on, and are not part of the estimate: it would lean towards them."""
        found = self._draw(PILOT).double().cpu()
        self.drawn += PILOT
        return found

    @abstractmethod
    def _draw(self, count: int) -> Tensor: ...

    @abstractmethod
    def basis(self) -> Estimate:
        """The norm itself, from all probes of a basis."""

    def prepare(self) -> None:  # noqa: B027
        """What comes before the first sample."""

    def deepen(self, rtol: float, count: int) -> int | None:
        """Make more of the square known from the pilot where that is cheaper than so many samples.

        Returns the samples that it takes then, judged by the pilot.
        """
        return None

    def estimate(self) -> Estimate:
        """From all samples so far."""
        return norm_from_squares(
            self.squares, self.known, self.unit, probes=self.drawn, seed=self.seed, method=self.name
        )

    @property
    def left_cost(self) -> float:
        """Multiply-adds of what comes before the first sample."""
        return 0.0


def samples_needed(mean: float, spread: float, known: float, rtol: float) -> int:
    """Samples that give an interval of 95 % this relative half-width.

    Args:
        mean: Of a sample.
        spread: Standard deviation of a sample.
        known: What is added to their mean.
        rtol: Half the width of the interval, over the norm.

    >>> samples_needed(1.0, 0.1, 0.0, 0.02), samples_needed(1.0, 0.1, 9.0, 0.02)
    (32, 10)
    """
    total = known + mean
    if total <= 0 or not math.isfinite(total + spread):
        return MOST

    def narrow(count: int) -> bool:
        stderr = spread / math.sqrt(count) / (2 * total)
        found = Estimate(1.0, stderr, count, 0, "", count - 1, skewed=mean > 0, sampled=mean / total)
        return found.relative_width() <= rtol

    low, high = LEAST, LEAST
    while not narrow(high) and high < MOST:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if narrow(middle) else (middle + 1, high)
    return high


def estimate_to_rtol(sampler: Sampler, rtol: float, limit: float = math.inf) -> Estimate | float:
    """An estimate with about this relative half-width; its further cost if that passes the limit.

    A pilot decides how many samples it takes; they are new ones, and none is looked at before the end. So their mean is
    unbiased for the square, whatever the pilot was like.

    Args:
        sampler: Draws the samples.
        rtol: Half the width of the interval of 95 %, over the norm.
        limit: Multiply-adds that what follows the pilot may take.
    """
    sampler.prepare()
    while True:
        pilot = sampler.pilot()
        count = samples_needed(float(pilot.mean()), float(pilot.std()), sampler.known, rtol)
        deeper = sampler.deepen(rtol, count)
        if deeper is not None and deeper > _SURE:
            continue
        count = min(count if deeper is None else deeper, sampler.complete)
        if count * sampler.probe_cost > limit:
            return count * sampler.probe_cost
        if count == sampler.complete:
            return sampler.basis()
        sampler.draw(count)
        return sampler.estimate()
