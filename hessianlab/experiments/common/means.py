"""Means for quantities that span orders of magnitude, and intervals of means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit


def geometric_mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of ratios and sizes, ``exp(mean(log x))``; zero if a value is.

    (`scipy.stats.gmean` is the same, but importing `scipy.stats` takes half a second.)

    >>> round(geometric_mean([1.0, 100.0]), 6), geometric_mean([0.0, 3.0])
    (10.0, 0.0)
    """
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else 0.0


def mean_interval(values: Sequence[float] | np.ndarray, level: float) -> tuple[float, float]:
    """Student's interval of the mean of two or more independent draws, which holds it in the share `level` of cases.

    >>> [round(end, 3) for end in mean_interval([1.0, 2.0, 3.0], 0.95)]
    [-0.484, 4.484]
    """
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * error
    return mean - half, mean + half


def detectable(draws: int, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true mean, in standard deviations, that so many draws tell from 0 with this power, two-sided.

    >>> round(detectable(5), 2), round(detectable(10), 2)
    (1.66, 0.99)
    """
    return float(stdtrit(draws - 1, 0.5 + level / 2) + stdtrit(draws - 1, power)) / math.sqrt(draws)
