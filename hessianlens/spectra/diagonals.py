"""Diagonal of a matrix that is known through its products."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.spectra.estimate import VectorEstimate
from hessianlens.spectra.probes import Probes, check_count, check_seed
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    basis,
    check_progress,
    check_square,
    in_closed_form,
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

    An operator in closed form (``op.exact``) answers by itself, where that takes no more products. With as many probes
    as rows the basis vectors are used, which is exact.

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
    if in_closed_form(op, probes):
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
