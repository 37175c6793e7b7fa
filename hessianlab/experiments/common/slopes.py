"""The exponent of a power law."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def log_log_slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float | None:
    """Least-squares slope of log y over log x; None if a value is zero, not a number if one is not finite.

    >>> round(log_log_slope([1, 2, 4], [3, 12, 48]), 6), log_log_slope([1, 2, 4], [0, 12, 48])
    (2.0, None)
    >>> log_log_slope([1, 2, 4], [3, 12, math.inf])
    nan
    """
    at, values = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if not np.isfinite(values).all():
        return math.nan
    if values.min() <= 0:
        return None
    return float(np.polyfit(np.log(at), np.log(values), 1)[0])
