"""Lanczos tridiagonalisation with full reorthogonalisation: Gauss quadrature and Ritz vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_that, check_whole
from hessianlens.spectra.reverse_communication import Iteration, answer
from hessianlens.spectra.summation import paired_inner_products, row_lengths

Multiply = Callable[[Tensor], Tensor]


TrialRun = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""Is given the basis Q ``[c, m, n]``, ``alpha``, ``beta`` and what the last product leaves outside of Q, ``[c, n]``."""
_CANCELLED = 0.5
"""A product that keeps less than this share of its length is orthogonalised a second time."""


def lanczos(
    multiply: Multiply, start: Float[Tensor, "n c"], steps: int, seen: TrialRun | None = None
) -> tuple[Float[Tensor, "c m"], Float[Tensor, "c m"]]:
    """Tridiagonal matrices ``T = Q^T A Q`` of a symmetric A on the Krylov spaces of several vectors at once.

    ``A q_j = beta_{j-1} q_{j-1} + alpha_j q_j + beta_j q_{j+1}``, with ``q_0`` the normalised start. Every new vector
    is orthogonalised against all earlier ones, and twice where little is left of it, so that no eigenvalue is found
    again. Where a Krylov space ends before ``steps``, T continues with zeros, decoupled from the part before.

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
    return answer(lanczos_iteration(start, steps, seen), multiply)


def lanczos_iteration(
    start: Float[Tensor, "n c"],
    steps: int,
    seen: TrialRun | None = None,
    room: Float[Tensor, "c m n"] | None = None,
) -> Iteration[tuple[Tensor, Tensor]]:
    """`lanczos` by reverse communication.

    Args:
        start: As for `lanczos`.
        steps: As for `lanczos`.
        seen: As for `lanczos`.
        room: From `lanczos_room`, for the vectors; made anew where it does not fit.
    """
    n, c = start.shape
    if room is None or room.shape != (c, steps + 1, n):
        room = lanczos_room(n, c, steps, start.dtype, start.device)
    alpha = torch.zeros(c, steps, dtype=torch.float64, device=start.device)
    beta = torch.zeros(c, steps, dtype=torch.float64, device=start.device)
    first = start.T.to(room.dtype)
    torch.div(first, row_lengths(first)[:, None].to(room.dtype), out=room[:, 0])
    scale = torch.zeros(c, dtype=torch.float64, device=start.device)
    for j in range(steps):
        w, basis = room[:, j + 1], room[:, : j + 1]
        product = yield room[:, j].T
        w.copy_(product.reshape(1, n) if c == 1 else product.T)  # PyTorch copies a transpose of one row slowly
        along, size = _orthogonalise(w, basis)
        alpha[:, j] = along[:, j]
        scale = torch.maximum(scale, torch.hypot(torch.linalg.vector_norm(along, dim=1), size))
        beta[:, j] = torch.where(size > _rounding(n, room.dtype) * scale, size, 0) if j + 1 < n else 0
        if j + 1 < steps:
            divisor = torch.where(beta[:, j] > 0, size, math.inf)  # zero behind the end of a Krylov space
            w.div_(divisor[:, None].to(room.dtype))
    if seen is not None:
        seen(room[:, :steps], alpha, beta[:, : steps - 1], room[:, steps])
    return alpha, beta


def lanczos_room(
    n: int, vectors: int, steps: int, dtype: torch.dtype, device: torch.device | None
) -> Float[Tensor, "c m n"]:
    """Memory for the vectors of `lanczos_iteration`; several iterations may use it one after the other."""
    return torch.empty(vectors, steps + 1, n, dtype=torch.promote_types(dtype, torch.float32), device=device)


def _rounding(n: int, dtype: torch.dtype) -> float:
    """What a product and two orthogonalisations leave of nothing, relative to the product: sums of n terms in pairs."""
    return 10 * (1 + math.log2(n)) * torch.finfo(dtype).eps


def _orthogonalise(
    w: Float[Tensor, "c n"], basis: Float[Tensor, "c j n"]
) -> tuple[Float[Tensor, "c j"], Float[Tensor, "c"]]:
    """Take away from w, in place, what lies along the basis; the coefficients of that, and the length of the rest."""
    along = torch.zeros(basis.shape[:2], dtype=torch.float64, device=w.device)
    for _ in range(2):
        inner = paired_inner_products(basis, w[:, None])
        w[:, None].baddbmm_(inner[:, None].to(w.dtype), basis, alpha=-1)
        along, size = along + inner, row_lengths(w)
        if bool((size >= _CANCELLED * torch.linalg.vector_norm(along, dim=1)).all()):
            break
    return along, size


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


_WORKSPACE = 2**30
"""Bytes of vectors and products that are kept at once."""
_FEWEST_PAIRS, _MOST_PAIRS = 4, 32


def pairs_held(n: int, dtype: torch.dtype) -> int:
    """Vectors with their products that are held at once: as many as fit in a gigabyte, 4 to 32.

    >>> pairs_held(10**3, torch.float32), pairs_held(3 * 10**7, torch.float32), pairs_held(3, torch.float32)
    (32, 4, 3)
    """
    return min(n, max(_FEWEST_PAIRS, min(_MOST_PAIRS, _WORKSPACE // (2 * n * dtype.itemsize))))


class RitzPairs:
    """The leading Ritz vectors of every Krylov space that was shown, and their products with A, which cost nothing.

    ``A Q = Q T + rest e_m^T`` gives ``A x = Q T y + y_m rest`` for ``x = Q y``: an eigenvector y of T is all it takes.

    Args:
        each: Vectors of each Krylov space, as long as there is room: see `pairs_held`.

    >>> from hessianlens.spectra import density
    >>> A, pairs = torch.diag(torch.arange(30.0, dtype=torch.float64)), RitzPairs()
    >>> found = density(A, probes=2, steps=4, keep=pairs)
    >>> torch.allclose(pairs.vectors @ A, pairs.products), len(pairs)
    (True, 4)
    """

    def __init__(self, each: int = 2) -> None:
        self.each = check_whole("each", each, 1)
        self._count = 0
        # Not filled with zeros: most of it is never touched, and then takes neither time nor memory.
        self._room: tuple[Tensor, Tensor] | None = None
        self._scratch: Tensor | None = None

    def scratch(self, like: Tensor) -> Float[Tensor, "n"]:
        """Memory for one more vector."""
        if self._scratch is None or self._scratch.shape != like.shape or self._scratch.dtype != like.dtype:
            self._scratch = torch.empty_like(like)
        return self._scratch

    def room(
        self, n: int, dtype: torch.dtype, device: torch.device | None, size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows for vectors and for their products, those that are known first; a search may work in them.

        Args:
            n: Length of a vector.
            dtype: Of its entries.
            device: Where it is.
            size: Rows; by default `pairs_held`.
        """
        shape = (pairs_held(n, dtype) if size is None else size, n)
        old = self._room
        if old is None or old[0].shape != shape or old[0].dtype != dtype:
            made = torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)
            self._count = min(self._count, shape[0])
            for new, rows in zip(made, old or (), strict=False):
                new[: self._count] = rows[: self._count]
            self._room = made
            return made
        return old

    def hold(self, count: int) -> None:
        """So many rows hold pairs now, of which the search that works in them knows; the memory stays."""
        self._count = count

    def copy(self) -> RitzPairs:
        """The same pairs in memory of their own."""
        other = RitzPairs(self.each)
        other._count, other._room = self._count, None
        if self._room is not None:
            vectors, products = (rows.clone() for rows in (self.vectors, self.products))
            other._room = vectors, products
        return other

    def add(self, vector: Float[Tensor, "n"], product: Float[Tensor, "n"]) -> None:
        """Keep another vector with its product, if there is room."""
        known = isinstance(vector, Tensor) and isinstance(product, Tensor) and vector.shape == product.shape
        check_that(known and vector.ndim == 1, "vector", vector, "a vector [n], and its product, [n] too")
        X, AX = self.room(len(vector), vector.dtype, vector.device)
        if self._count < len(X):
            X[self._count], AX[self._count] = vector, product
            self._count += 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.vectors, self.products, strict=True)

    def __len__(self) -> int:
        return self._count

    @property
    def vectors(self) -> Float[Tensor, "k n"]:
        """A vector per row; not orthogonal to those of other Krylov spaces."""
        return torch.empty(0, 0) if self._room is None else self._room[0][: self._count]

    @property
    def products(self) -> Float[Tensor, "k n"]:
        """Their products with A, row by row."""
        return torch.empty(0, 0) if self._room is None else self._room[1][: self._count]

    def see(
        self,
        basis: Float[Tensor, "c m n"],
        alpha: Float[Tensor, "c m"],
        beta: Float[Tensor, "c m-1"],
        rest: Float[Tensor, "c n"],
    ) -> None:
        """What `lanczos` shows at its end."""
        known = all(isinstance(each, Tensor) for each in (basis, alpha, beta, rest)) and basis.ndim == 3
        c, m, n = basis.shape if known else (0, 0, 0)
        known = known and [each.shape for each in (alpha, beta, rest)] == [(c, m), (c, max(m - 1, 0)), (c, n)]
        check_that(known, "basis", basis, "[c, m, n], beside alpha [c, m], beta [c, m - 1] and rest [c, n]")
        T = torch.diag_embed(alpha) + torch.diag_embed(beta, offset=1) + torch.diag_embed(beta, offset=-1)
        X, AX = self.room(n, basis.dtype, basis.device)
        for Q, t, left in zip(basis, T, rest, strict=True):
            for y in torch.linalg.eigh(t)[1].T.flip(0)[: min(self.each, len(X) - self._count)]:
                torch.mv(Q.T, y.to(Q), out=X[self._count])
                torch.mv(Q.T, (t @ y).to(Q), out=AX[self._count]).add_(left, alpha=float(y[-1]))
                self._count += 1
