"""The Frobenius norm."""

from __future__ import annotations

import torch

from hessianlens.spectra.estimate import Estimate
from hessianlens.spectra.lengths import lengths_of, norm_from_lengths
from hessianlens.spectra.probes import Probes, check_count
from hessianlens.spectra.products import (
    LinearOperator,
    Progress,
    basis,
    check_operator,
    check_progress,
    in_closed_form,
    probe,
)
from hessianlens.state_guard import restores_state


@restores_state
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

    ``|A|_F^2 = E |A v|^2`` for ``E v v^T = I``. The estimate is the root of the mean over the probes
    (`norm_from_lengths`). Its interval is made for the skewed samples of few eigenvalues: longer above than below, and
    wide where probes are few. Calls with the same seed share their probes if the operators have as many columns: give
    another seed to each of the norms that are compared.

    An operator in closed form (``op.exact``) answers by itself. With as many probes as columns the basis vectors are
    used, which is exact.

    Args:
        op: A linear operator or a matrix.
        probes: Number of products; one gives the interval that holds for any matrix.
        seed: Seed of the probes.
        distribution: "rademacher", "gaussian" or "sphere".
        chunk: Vectors multiplied at once; by default as many as fit in 256 MiB.
        progress: Called with the products made so far and their total.

    >>> A = torch.diag(torch.tensor([3.0, 4.0], dtype=torch.float64))
    >>> print(frobenius(A, probes=2))
    5 (exact)
    >>> print(frobenius(torch.arange(400.0).reshape(20, 20), probes=10, seed=0))
    (4.2 [3.2, 5.9])e+03 (10 probes)
    """
    _, columns = check_operator(op)
    check_progress(progress)
    vectors = Probes(columns, probes, seed, distribution, op.dtype, op.device)
    if in_closed_form(op):
        return Estimate.exactly(float(op.frobenius_norm().detach()))
    check_count("probes", probes, 1, "the number of products")
    exact = probes >= columns
    pairs = probe(op, basis(op) if exact else vectors, chunk, progress)
    lengths = torch.cat([lengths_of(AV) for _, AV in pairs])
    return norm_from_lengths(lengths, seed=seed, exact=exact)
