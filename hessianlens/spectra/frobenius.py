"""The Frobenius norm."""

from __future__ import annotations

import math

import torch

from hessianlens.operators import StructuredOperator
from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.probes import Probes, check_count
from hessianlens.spectra.products import LinearOperator, Progress, basis, check_operator, check_progress, probe


def frobenius(
    op: LinearOperator,
    probes: int = 20,
    seed: int = 0,
    *,
    distribution: str = "rademacher",
    chunk: int | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """The Frobenius norm of any operator, square or not, from the lengths of its products.

    ``|A|_F^2 = E |A v|^2`` for ``E v v^T = I``. The estimate is the root of the mean ``m`` over the probes; its
    standard error is that of the mean, ``s``, through the derivative of the root: ``s / (2 sqrt(m))``.

    A structured operator answers exactly, without products. With as many probes as columns the basis vectors are
    used, which is exact.

    Args:
        op: A linear operator or a matrix.
        probes: Number of products; at least 2, to have an error bar.
        seed: Seed of the probes.
        distribution: "rademacher", "gaussian" or "sphere".
        chunk: Vectors multiplied at once; by default as many as fit in 256 MiB.
        progress: Called with the products made so far and their total.

    >>> A = torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> print(frobenius(A, probes=2))
    5 (exact)
    >>> print(frobenius(torch.arange(400.0).reshape(20, 20), probes=10, seed=0))
    (4.2 ± 0.5)e+03 (10 probes)
    """
    _, columns = check_operator(op)
    check_progress(progress)
    vectors = Probes(columns, probes, seed, distribution, op.dtype, op.device)
    if isinstance(op, StructuredOperator):
        return Estimate.exactly(float(op.frobenius_norm().detach()))
    check_count("probes", probes, 1 if columns == 1 else 2, "the error bar is their spread")
    exact = probes >= columns
    pairs = probe(op, basis(op) if exact else vectors, chunk, progress)
    squares = torch.cat([AV.double().square().sum(0) for _, AV in pairs])
    if exact:
        return Estimate.exactly(math.sqrt(float(squares.sum())), columns, "basis")
    square = Estimate.from_samples(squares, probes, seed, "hutchinson")
    value = math.sqrt(square.value)
    return Estimate(value, square.stderr / (2 * value) if value else 0.0, probes, seed, "hutchinson", square.dof)
