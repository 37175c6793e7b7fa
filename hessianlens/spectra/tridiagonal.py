"""Lanczos tridiagonalisation with full reorthogonalisation, and the Gauss quadrature it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Multiply = Callable[[Tensor], Tensor]


Seen = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Is given the basis Q ``[c, m, n]``, ``alpha``, ``beta`` and what the last product leaves outside of Q, ``[c, n]``."""


def lanczos(
    multiply: Multiply, start: Float[Tensor, "n c"], steps: int, seen: Seen | None = None
) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
    """Tridiagonal matrices ``T = Q^T A Q`` of a symmetric A on the Krylov spaces of several vectors at once.

    ``A q_j = beta_{j-1} q_{j-1} + alpha_j q_j + beta_j q_{j+1}``, with ``q_0`` the normalised start. Every new vector
    is orthogonalised against all earlier ones, twice, so that no eigenvalue is found again. Where a Krylov space ends
    before ``steps``, T continues with zeros, decoupled from the part before.

    Args:
        multiply: The products ``A V`` with a matrix (n, c).
        start: One start vector per column.
        steps: Size m of the tridiagonal matrices, at most n.
        seen: Is shown the vectors before they are gone: ``A Q = Q T + rest e_m^T``.

    Returns:
        The diagonals ``alpha`` and off-diagonals ``beta``, in float64. The last ``beta`` is the one behind T, which
        leads out of the Krylov space; it is zero where that space is invariant.

    >>> A = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    >>> lanczos(lambda V: A @ V, torch.tensor([[1.0], [0.0]], dtype=torch.float64), 2)
    (tensor([[2., 2.]], dtype=torch.float64), tensor([[1., 0.]], dtype=torch.float64))
    """
    n, c = start.shape
    storage = torch.promote_types(start.dtype, torch.float32)
    basis = torch.empty(c, steps, n, dtype=storage, device=start.device)
    alpha = torch.zeros(c, steps, dtype=torch.float64, device=start.device)
    beta = torch.zeros(c, steps, dtype=torch.float64, device=start.device)
    basis[:, 0] = (start.double() / start.double().norm(dim=0)).T
    scale = torch.zeros(c, dtype=torch.float64, device=start.device)
    for j in range(steps):
        w = multiply(basis[:, j].T).T.to(storage)
        alpha[:, j] = (w * basis[:, j]).sum(1, dtype=torch.float64)
        scale = torch.maximum(scale, torch.linalg.vector_norm(w, dim=1, dtype=torch.float64))
        if j + 1 == n and seen is None:
            break
        w = _orthogonalise(w, basis[:, : j + 1])
        size = torch.linalg.vector_norm(w, dim=1, dtype=torch.float64)
        beta[:, j] = torch.where(size > 10 * torch.finfo(storage).eps * scale, size, 0) if j + 1 < n else 0
        if j + 1 == steps:
            break
        basis[:, j + 1] = torch.where((beta[:, j] > 0)[:, None], w / size[:, None], 0)
    if seen is not None:
        seen(basis, alpha, beta[:, : steps - 1], w)
    return alpha, beta


def _orthogonalise(w: Float[Tensor, "c n"], basis: Float[Tensor, "c j n"]) -> Float[Tensor, "c n"]:
    for _ in range(2):
        inner = basis @ w[:, :, None]
        w = w - (basis.mT @ inner)[:, :, 0]
    return w


class Quadrature(NamedTuple):
    """A Gauss rule: nodes, weights, and the residuals of the Ritz vectors, signed as the first entries are positive."""

    nodes: Float[Tensor, "c m"]
    weights: Float[Tensor, "c m"]
    residuals: Float[Tensor, "c m"]


def gauss_quadrature(alpha: Float[Tensor, "c m"], beta: Float[Tensor, "c m"]) -> Quadrature:
    """Nodes and weights with ``q^T p(A) q = sum_j w_j p(theta_j)`` for polynomials p of degree up to ``2 m - 1``.

    The nodes are the eigenvalues of T (Ritz values), the weights the squared first entries of its eigenvectors. The
    residual ``|A x - theta x|`` of a Ritz vector is the last beta times the last entry of the eigenvector.

    >>> nodes, weights, residuals = gauss_quadrature(torch.tensor([[2.0, 2.0]]), torch.tensor([[1.0, 0.5]]))
    >>> nodes, weights, residuals
    (tensor([[1., 3.]]), tensor([[0.5000, 0.5000]]), tensor([[-0.3536,  0.3536]]))
    """
    off = beta[:, :-1]
    T = torch.diag_embed(alpha) + torch.diag_embed(off, offset=1) + torch.diag_embed(off, offset=-1)
    nodes, vectors = torch.linalg.eigh(T)
    first, last = vectors[:, 0, :], vectors[:, -1, :]
    return Quadrature(nodes, first.square(), beta[:, -1:] * last * torch.where(first < 0, -1.0, 1.0))
