"""Statistics that experiments share: means and intervals, slopes, sizes of entries, spectra; and rows of a result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from hessianlab.results import Result, Row, Scalar

if TYPE_CHECKING:  # a study states its power without torch
    from torch import Tensor


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


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Spearman's correlation of four or more pairs, and its 95 % interval.

    The interval is Fisher's with the variance of Bonett and Wright, ``(1 + r^2 / 2) / (n - 3)``.

    >>> [round(value, 2) for value in rank_correlation([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 3.0, 2.0, 4.0, 6.0, 5.0])]
    [0.89, 0.07, 0.99]
    """
    from scipy.stats import spearmanr  # takes half a second

    r = round(float(spearmanr(x, y).statistic), 12)
    half = 1.96 * math.sqrt((1 + r * r / 2) / (len(x) - 3))
    centre = math.atanh(min(max(r, -1 + 1e-9), 1 - 1e-9))
    return r, math.tanh(centre - half), math.tanh(centre + half)


def detectable(draws: int, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true mean, in standard deviations, that so many draws tell from 0 with this power, two-sided.

    >>> round(detectable(5), 2), round(detectable(10), 2)
    (1.66, 0.99)
    """
    return float(stdtrit(draws - 1, 0.5 + level / 2) + stdtrit(draws - 1, power)) / math.sqrt(draws)


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


EDGES = np.round(np.arange(-16.0, 2.01, 0.1), 1)
"""Edges of the histogram's bins, in powers of ten; entries outside count in the first or last bin."""


def entry_sizes(matrix: Tensor) -> dict[str, float]:
    """Median of the absolute entries that are not zero, root mean square, largest, share of exact zeros, and norm.

    Exact zeros come from structure (a Kronecker product with an identity) and would hide the size of all others.

    >>> import torch
    >>> entry_sizes(torch.tensor([[3.0, -4.0], [0.0, 1.0]]))["median"]
    3.0
    """
    entries = np.abs(matrix.double().numpy())
    present = entries[entries > 0]
    return {
        "median": float(np.median(present)) if present.size else 0.0,
        "rms": float(np.sqrt(np.mean(entries**2))),
        "largest": float(entries.max()),
        "zeros": float(np.mean(entries == 0)),
        "norm": float(np.linalg.norm(entries)),
    }


def log_histogram(matrix: Tensor) -> np.ndarray:
    """How many entries that are not zero lie in each bin of `EDGES`.

    >>> import torch
    >>> int(log_histogram(torch.tensor([0.0, 1e-3, -1e-3])).sum())
    2
    """
    entries = np.abs(matrix.double().numpy())
    logs = np.clip(np.log10(entries[entries > 0]), EDGES[0], EDGES[-1])
    counts, _ = np.histogram(logs, EDGES)
    return counts


def rounding(values: Tensor) -> float:
    """What an eigenvalue of zero may look like: size times machine precision times the largest one."""
    import torch

    return len(values) * torch.finfo(values.dtype).eps * float(values.abs().max())


def spectrum_facts(values: Tensor) -> dict[str, Scalar]:
    """What the eigenvalues of a symmetric matrix say; those within rounding of zero count as zero.

    ``negative_share`` is the share of negative eigenvalues in the sum of all absolute ones, ``condition`` the largest
    absolute eigenvalue over the smallest one that is not zero.

    >>> import torch
    >>> facts = spectrum_facts(torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64))
    >>> facts["rank"], facts["negative"], facts["negative_share"], facts["condition"]
    (2, 1, 0.25, 3.0)
    """
    least = rounding(values)
    sizes = values.abs()
    kept, total = sizes[sizes > least], float(sizes.sum())
    dropped = sizes[sizes <= least]
    negative = values[values < -least]
    return {
        "size": len(values),
        "rank": len(kept),
        "negative": len(negative),
        "negative_share": float(negative.abs().sum()) / total if total else 0.0,
        "smallest": float(values.min()),
        "largest": float(values.max()),
        "norm": float(values.norm()),
        "condition": float(kept.max() / kept.min()) if len(kept) else None,
        "smallest_kept": float(kept.min() / sizes.max()) if len(kept) else None,
        "largest_dropped": float(dropped.max() / sizes.max()) if len(dropped) and total else None,
    }


def multiplicity(values: Tensor) -> int:
    """How often each positive eigenvalue comes, at least: the shortest run of equal ones.

    >>> import torch
    >>> multiplicity(torch.tensor([-2.0, -2.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0], dtype=torch.float64))
    2
    """
    least = rounding(values)
    positive = values[values > least].numpy()
    jumps = np.flatnonzero(np.diff(positive) > 100 * least)
    return int(np.diff(np.concatenate([[-1], jumps, [len(positive) - 1]])).min())


def select(result: Result, **wanted: Scalar) -> list[dict[str, Any]]:
    """The rows that have these values."""
    return [row for row in result.rows() if all(row.get(key) == value for key, value in wanted.items())]


def numbers(rows: Sequence[Row], field: str) -> np.ndarray:
    """One column as numbers; rows without it, or with None in it, are left out."""
    return np.array([float(value) for row in rows if (value := row.get(field)) is not None])


def choices(result: Result, field: str) -> list[str]:
    """The different values of a column, in the order of the plan."""
    return list(dict.fromkeys(str(row[field]) for row in result.rows() if row.get(field) is not None))


def block_ratios(result: Result, field: str = "median", **wanted: Scalar) -> np.ndarray:
    """Value block over query block, draw by draw, both parts full."""
    value, query = (numbers(select(result, part="full", block=b, **wanted), field) for b in ("value", "query"))
    return value / query
