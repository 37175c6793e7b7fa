r"""The nearest sum of Kronecker products to a block, without forming the block (Van Loan and Pitsianis, 1993).

With the entries of ``H[(a,b),(c,d)]`` rearranged as ``R[(a,c),(b,d)]``, a Kronecker product ``A (x) B`` becomes the
rank-one matrix ``vec(A) vec(B)'``, and the Frobenius norm stays what it is. So the leading singular triplets of R are
the nearest sum, and ``|H - fit|^2 = |H|^2 - sum_r s_r^2``. Of a sum over tokens,

    H = sum_n p_n p_n' (x) G_n      ->      R vec(Y) = sum_n vec(p_n p_n') <G_n, Y>,

which is a contraction of its factors: alternating products with R and R' find the triplets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_that

_GUARD = 2
"""Directions beside those asked for: two equal singular values are then both met."""
_COLUMNS = 40
"""Directions per one that is asked for, before the search begins anew from the best of them."""
_ROUNDING = 64.0
"""Roundings that a residual cannot go below."""
_ROUNDS = 400


@dataclass(frozen=True, eq=False)
class Rearranged:
    """Products with ``R[(a,c),(b,d)] = H[(a,b),(c,d)]`` and with its transpose.

    Attributes:
        times: From ``[b, d, k]`` to ``[a, c, k]``: ``sum_bd H[(a,b),(c,d)] Y[b,d]``.
        adjoint: From ``[a, c, k]`` to ``[b, d, k]``.
        why: How these products are made.
    """

    times: Callable[[Tensor], Tensor]
    adjoint: Callable[[Tensor], Tensor]
    why: str


@dataclass(frozen=True, eq=False)
class KroneckerFit:
    """The nearest ``sum_r A_r (x) B_r`` to a block.

    Attributes:
        factors: ``A_r`` and ``B_r``, of the same Frobenius norm each, the leading pair first.
        singular_values: ``|A_r (x) B_r|``.
        norm: Frobenius norm of the block.
        why: Whether the search used the factors or the dense matrix, and why.
    """

    factors: tuple[tuple[Float[Tensor, "a c"], Float[Tensor, "b d"]], ...]
    singular_values: tuple[float, ...]
    norm: float
    why: str

    @property
    def relative_error(self) -> float:
        """``|H - fit| / |H|``; below about 1e-8 in double precision it is rounding. Zero for a zero block."""
        if self.norm == 0:
            return 0.0
        return math.sqrt(max(0.0, 1 - math.fsum((s / self.norm) ** 2 for s in self.singular_values)))

    @property
    def error(self) -> float:
        """``|H - fit|``, the smallest of all sums of so many Kronecker products."""
        return self.relative_error * self.norm

    def to_dense(self) -> Float[Tensor, "m n"]:
        """``sum_r A_r (x) B_r`` as a matrix, rows ``(a, b)`` and columns ``(c, d)``."""
        dense = [torch.kron(A.contiguous(), B.contiguous()) for A, B in self.factors]
        return torch.stack(dense).sum(0)

    def __matmul__(self, vector: Float[Tensor, "n"]) -> Float[Tensor, "m"]:
        """``sum_r A_r X B_r'`` for ``vector = vec(X)``."""
        A, B = self.factors[0]
        n = A.shape[1] * B.shape[1]
        sound = isinstance(vector, Tensor) and vector.shape == (n,)
        check_that(sound, "vector", vector, f"a vector of {n} numbers")
        X = vector.to(A).reshape(A.shape[1], B.shape[1])
        return torch.stack([(A @ X @ B.T).flatten() for A, B in self.factors]).sum(0)

    def __repr__(self) -> str:
        products = "product" if len(self.factors) == 1 else "products"
        return f"KroneckerFit of {len(self.factors)} {products}: {100 * self.relative_error:.3g} % of the norm is left"


def leading_triplets(
    rearranged: Rearranged, rows: tuple[int, int], columns: tuple[int, int], rank: int, *, like: Tensor, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Leading singular triplets ``U [m, r], s [r], V [n, r]`` by Rayleigh-Ritz in a growing block Krylov space.

    Args:
        rearranged: The matrix.
        rows: Sizes a, c of its rows.
        columns: Sizes b, d of its columns.
        rank: How many.
        like: A tensor of the dtype and device to work in.
        seed: Seed of the first directions.
    """

    def times(V: Tensor) -> Tensor:
        return rearranged.times(V.reshape(*columns, -1)).reshape(math.prod(rows), -1)

    def adjoint(U: Tensor) -> Tensor:
        return rearranged.adjoint(U.reshape(*rows, -1)).reshape(math.prod(columns), -1)

    if math.prod(rows) < math.prod(columns):
        V, s, U = _search(adjoint, times, math.prod(rows), rank, like, seed)
        return U, s, V
    return _search(times, adjoint, math.prod(columns), rank, like, seed)


def _search(
    times: Callable[[Tensor], Tensor],
    adjoint: Callable[[Tensor], Tensor],
    n: int,
    rank: int,
    like: Tensor,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The triplets, expanding the space by the residuals ``R' u - s v`` of all that are followed."""
    block = min(n, rank + _GUARD)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n, block, generator=generator, dtype=torch.float64).to(like)
    V = torch.linalg.qr(start).Q
    W = times(V)
    allowed = _ROUNDING * torch.finfo(like.dtype).eps
    for _ in range(_ROUNDS):
        Q, T = torch.linalg.qr(W)
        P, s, Zh = torch.linalg.svd(T, full_matrices=False)
        U, right = Q @ P[:, :block], V @ Zh[:block].T
        residuals = adjoint(U) - right * s[:block]
        enough = bool((residuals[:, :rank].norm(dim=0) <= allowed * s[0]).all())
        if enough or V.shape[1] >= n:
            break
        if V.shape[1] + block > max(_COLUMNS * block, 2 * block):
            V, W = V @ Zh[: 2 * block].T, W @ Zh[: 2 * block].T
        fresh = _orthonormal(residuals, V)[:, : n - V.shape[1]]
        if fresh.shape[1] == 0:
            break
        V, W = torch.cat([V, fresh], 1), torch.cat([W, times(fresh)], 1)
    return U[:, :rank], s[:rank], right[:, :rank]


def _orthonormal(X: Tensor, V: Tensor) -> Tensor:
    """Orthonormal directions of X that are orthogonal to V; those that rounding made are left out."""
    lengths = X.norm(dim=0)
    X = X[:, lengths > 0] / lengths[lengths > 0]
    for _ in range(2):
        X = X - V @ (V.T @ X)
    Q, T = torch.linalg.qr(X)
    Q = Q[:, T.diagonal().abs() > 1e3 * torch.finfo(X.dtype).eps]
    return torch.linalg.qr(Q - V @ (V.T @ Q)).Q
