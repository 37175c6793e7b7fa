"""The Frobenius norm, from the lengths of matvecs."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.spectra.estimate import Estimate
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


def norm_from_lengths(lengths: Float[Tensor, "probes"], *, seed: int | None, exact: bool = False) -> Estimate:
    """``|A|_F`` from ``|A v_k|``, as ``|A|_F^2 = E |A v|^2`` for ``E v v^T = I``.

    The estimate is the root of the mean ``m``; its standard error is that of the mean, ``s``, through the derivative
    of the root: ``s / (2 sqrt(m))``. The lengths of further probes, or of the products with ``A^T``, are appended to
    those that are there: the estimate from all of them is a function of all of them.

    Args:
        lengths: One a probe.
        seed: Seed of the probes.
        exact: Whether the vectors are all of the basis: the squared norm is then the sum.

    >>> lengths = torch.tensor([2.0, 1.8, 2.2, 2.0])
    >>> print(norm_from_lengths(lengths, seed=0))
    2.00 [1.82, 2.68] (4 probes: few)
    >>> print(norm_from_lengths(lengths[:1], seed=0), norm_from_lengths(lengths, seed=None, exact=True), sep="; ")
    2.0 [0.9, 63.8] (1 probe: few); 4.00999 (exact)
    """
    lengths = lengths.double().cpu()
    unit = float(lengths.max()) or 1.0  # squares relative to the largest neither overflow nor vanish
    squares, count = (lengths / unit).square(), len(lengths)
    if exact:
        return Estimate.exactly(unit * math.sqrt(float(squares.sum())), count, "basis")
    value = math.sqrt(float(squares.mean()))
    if count == 1 or value == 0:
        stderr = 0.0 if value == 0 else math.inf
    else:
        stderr = float(squares.std()) / math.sqrt(count) / (2 * value)
    return Estimate(unit * value, unit * stderr, count, seed, "hutchinson", count - 1, skewed=True)


def norm_from_squares(
    squares: Float[Tensor, "probes"], known: float, unit: float, *, probes: int, seed: int | None, method: str
) -> Estimate:
    """``|A|_F`` from the part of its square that is known and samples of the rest.

    Args:
        squares: Samples whose mean is the rest, in squared units.
        known: The part that is known, in squared units.
        unit: What the norm is measured in.
        probes: How many random matrices were drawn, those included that the known part took.
        seed: Their seed.
        method: How the estimate is called.

    >>> print(norm_from_squares(torch.tensor([0.1] * 6 + [0.2] * 6), 0.85, 2.0, probes=20, seed=0, method="sketch"))
    2.000 [1.973, 2.057] (20 probes)
    """
    squares, count = squares.double().cpu(), len(squares)
    mean = float(squares.mean())
    total = known + mean
    if total <= 0:
        return Estimate(0.0, math.inf, probes, seed, method, count - 1)
    value, spread = math.sqrt(total), float(squares.std()) / math.sqrt(count) if count > 1 else math.inf
    stderr, share = spread / (2 * value), mean / total
    return Estimate(unit * value, unit * stderr, probes, seed, method, count - 1, skewed=mean > 0, sampled=share)


def lengths_of(columns: Float[Tensor, "n k"]) -> Float[Tensor, "k"]:
    """The length of every column in float64, without overflow or underflow where the entries are finite.

    >>> lengths_of(torch.tensor([[3e30, 0.0], [4e30, 1e-30]]))
    tensor([5.0000e+30, 1.0000e-30], dtype=torch.float64)
    """
    columns = columns.to(torch.promote_types(columns.dtype, torch.float32))
    unit = torch.linalg.vector_norm(columns, torch.inf, dim=0).clamp(min=torch.finfo(columns.dtype).tiny)
    return unit.double() * torch.linalg.vector_norm(columns / unit, dim=0, dtype=torch.float64)


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

    An operator in closed form (``op.exact``) answers by itself, where that takes no more products. With as many probes
    as columns the basis vectors are used, which is exact.

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
    if in_closed_form(op, probes):
        return Estimate.exactly(float(op.frobenius_norm().detach()))
    check_count("probes", probes, 1, "the number of products")
    exact = probes >= columns
    pairs = probe(op, basis(op) if exact else vectors, chunk, progress)
    lengths = torch.cat([lengths_of(AV) for _, AV in pairs])
    return norm_from_lengths(lengths, seed=seed, exact=exact)
