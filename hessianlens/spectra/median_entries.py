"""Median size of the entries of a matrix, from sampled columns."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.memory import ensure_fits
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.probes import check_count, check_seed, chunk_size
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    announce,
    check_operator,
    check_progress,
    in_closed_form,
    multiply,
)

_DENSE_ENTRIES = 2**22


def median_entry(
    op: LinearOperator,
    columns: int = 20,
    seed: int = 0,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """``median_ij |A_ij|``, from columns ``A e_j`` drawn without replacement.

    The standard error is Woodruff's (1952), for a median of clustered draws: ``s``, the standard error of the share of
    entries below the median, from its spread over the columns and with the correction ``1 - columns / n`` of a finite
    population, is carried to half the distance between the quantiles ``1/2 - s`` and ``1/2 + s``. With all columns the
    median is exact, as it is for an operator in closed form that is small enough to be written down.

    Args:
        op: A linear operator or a matrix, square or not.
        columns: Number of columns; at least 2, to have an error bar.
        seed: Seed of their choice.
        chunk: Columns computed at once; by default as many as fit in 256 MiB.
        progress: Called with the columns computed so far and their total.

    >>> print(median_entry(torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])))
    3.5 (exact)
    """
    rows, n = check_operator(op)
    check_progress(progress)
    check_seed(seed)
    if in_closed_form(op, columns) and rows * n <= _DENSE_ENTRIES:
        return Estimate.exactly(float(np.median(op.to_dense().detach().abs().cpu().numpy())))
    check_count("columns", columns, 1 if n == 1 else 2, "the error bar is their spread")
    count = min(int(columns), n)
    ensure_fits("The sampled columns", (rows, 2 * count), torch.float64, op.device, "take fewer columns")
    chosen = np.sort(np.random.default_rng(seed).choice(n, count, replace=False)) if count < n else np.arange(n)
    sizes = _columns(op, torch.from_numpy(chosen), chunk_size(chunk, max(rows, n), count), progress).abs().cpu().numpy()
    median = float(np.median(sizes))
    if count == n:
        return Estimate.exactly(median, n, "basis")
    shares = ((sizes < median).mean(0) + (sizes <= median).mean(0)) / 2
    s = float(shares.std(ddof=1)) * math.sqrt((1 - count / n) / count)
    low, high = np.quantile(sizes, [max(0.0, 0.5 - s), min(1.0, 0.5 + s)])
    return Estimate(median, float(high - low) / 2, count, seed, "columns")


def _columns(op: LinearOperator, chosen: Tensor, size: int, progress: Progress | None) -> Float[Tensor, "rows sampled"]:
    parts, done = [], 0
    announce(op, len(chosen))
    for indices in chosen.split(size):
        units = torch.zeros(int(op.shape[1]), len(indices), dtype=op.dtype, device=op.device)
        units[indices, torch.arange(len(indices), device=indices.device)] = 1
        parts.append(multiply(op, units).double())
        done += len(indices)
        if progress is not None:
            progress(done, len(chosen))
    return torch.cat(parts, dim=1)
