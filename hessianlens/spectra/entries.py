"""The diagonal, and the median size of the entries."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.memory import ensure_fits
from hessianlens.spectra.estimate import Estimate, VectorEstimate
from hessianlens.spectra.probes import Probes, check_count, check_seed, chunk_size
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    announce,
    basis,
    check_operator,
    check_progress,
    check_square,
    in_closed_form,
    multiply,
    probe,
)
from hessianlens.state_guard import restores_state


@restores_state
def diagonal(
    op: LinearOperator,
    probes: int = 20,
    seed: int = 0,
    *,
    chunk: int | None = None,
    progress: Progress | None = None,
) -> VectorEstimate:
    """Every diagonal entry with a standard error of its own.

    ``A_ii = E v_i (A v)_i`` for a vector ``v`` of random signs (Bekas, Kokiopoulou and Saad 2007); entry ``i`` has the
    variance ``sum_{j != i} A_ij^2`` if A is symmetric, estimated by the spread over the probes.

    An operator in closed form (``op.exact``) answers by itself. With as many probes as rows the basis vectors are used,
    which is exact.

    Args:
        op: A square linear operator or matrix.
        probes: Number of products; at least 2, to have error bars.
        seed: Seed of the probes.
        chunk: Vectors multiplied at once; by default as many as fit in 256 MiB.
        progress: Called with the products made so far and their total.

    >>> A = torch.diag(torch.arange(1.0, 11.0)) + 0.1
    >>> estimate = diagonal(A, probes=8, seed=0)
    >>> print(estimate)
    10 values in [0.975, 10.18] (95 % intervals of ± 0.24 or less, 8 probes: few)
    >>> print(estimate[0])
    0.97 [0.73, 1.22] (8 probes: few)
    >>> diagonal(A, probes=10).value[:3]
    tensor([1.1000, 2.1000, 3.1000], dtype=torch.float64)
    """
    n = check_square(op, "a diagonal")
    check_progress(progress)
    check_seed(seed)
    if in_closed_form(op):
        value = op.diagonal().detach().double()
        return VectorEstimate(value, torch.zeros_like(value), 0, None, "exact")
    check_count("probes", probes, 1 if n == 1 else 2, "the error bar is their spread")
    if probes >= n:
        value = torch.cat([(V * AV).double().sum(0) for V, AV in probe(op, basis(op), chunk, progress)])
        return VectorEstimate(value, torch.zeros_like(value), n, None, "basis")
    drawn = Probes(n, probes, seed, "rademacher", op.dtype, op.device)
    value, variance = _mean_and_variance((V * AV).double() for V, AV in probe(op, drawn, chunk, progress))
    return VectorEstimate(value, (variance / probes).sqrt(), probes, seed, "hutchinson")


def _mean_and_variance(chunks: Iterable[Float[Tensor, "n _"]]) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """Mean and variance of every row over the columns of all chunks, merged one chunk at a time."""
    seen, mean, squares = 0, None, None
    for samples in chunks:
        k, chunk_mean = samples.shape[1], samples.mean(1)
        own = (samples - chunk_mean[:, None]).square().sum(1)
        if mean is None or squares is None:
            seen, mean, squares = k, chunk_mean, own
            continue
        difference = chunk_mean - mean
        squares = squares + own + difference**2 * (seen * k / (seen + k))
        mean = mean + difference * (k / (seen + k))
        seen += k
    assert mean is not None and squares is not None
    return mean, squares / (seen - 1)


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
    if in_closed_form(op) and rows * n <= _DENSE_ENTRIES:
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
