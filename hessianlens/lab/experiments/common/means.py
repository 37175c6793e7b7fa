"""Means for quantities that span orders of magnitude."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def geometric_mean(values: Sequence[float] | np.ndarray) -> float:
    """The mean of ratios and sizes, ``exp(mean(log x))``; zero if a value is.

    (`scipy.stats.gmean` is the same, but importing `scipy.stats` takes half a second.)

    >>> round(geometric_mean([1.0, 100.0]), 6), geometric_mean([0.0, 3.0])
    (10.0, 0.0)
    """
    return float(np.exp(np.mean(np.log(values)))) if min(values) > 0 else 0.0
