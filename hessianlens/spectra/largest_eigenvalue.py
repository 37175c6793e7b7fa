"""The largest eigenvalue from few products, begun where an earlier search ended."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_tensor, renamed_arguments
from hessianlens.errors import check_number, check_that
from hessianlens.spectra.lanczos_quadrature import RitzPairs
from hessianlens.spectra.probes import Probes, check_count
from hessianlens.spectra.products import LinearOperator, check_square, multiply, start_vectors
from hessianlens.spectra.reverse_communication import Iteration, answer
from hessianlens.spectra.summation import inner_products, row_lengths

_KEPT = 2
"""Vectors that it starts anew from."""
_LOST = 1e-6
"""A direction that is left with this share of its length has been searched already."""
_CANCELLED = 0.5
"""A direction that keeps less than this share of its length is orthogonalised a second time."""
_PIECE_ENTRIES = 2**16
"""Entries of long vectors that are combined at once."""
_DEPENDENT = 1e-4
"""Known vectors are cut to the directions whose squared lengths are above this share of the largest."""


@dataclass(frozen=True, eq=False)
class LeadingEigenpair:
    """The algebraically largest eigenvalue that was found.

    Attributes:
        value: ``v^T A v``, never above the largest eigenvalue.
        vector: v, of length one.
        residual: ``|A v - value v|``: a symmetric A has an eigenvalue at most this far from the value.
        converged: Whether the residual is within the tolerance.
        products: Number of products with A.
    """

    value: float
    vector: Float[Tensor, "n"]
    residual: float
    converged: bool
    products: int

    def __str__(self) -> str:
        state = "" if self.converged else ", NOT converged"
        return f"{self.value:.6g} (residual {self.residual:.1e}, {self.products} matvecs{state})"

    __repr__ = __str__


@renamed_arguments(tol="rtol")
def leading_eigenpair(
    op: LinearOperator,
    start: Float[Tensor, "n"] | None = None,
    *,
    rtol: float = 0.05,
    most: int = 100,
    seed: int = 0,
    basis: int | None = None,
    known: RitzPairs | None = None,
) -> LeadingEigenpair:
    """``A v = lambda v`` with the largest lambda of a symmetric A, to a residual of ``rtol |lambda|``.

    Rayleigh-Ritz on the space of all residuals so far, which is that of Lanczos from `start`; where it grows beyond
    `basis` vectors, it starts anew from the best two (a thick restart). The value's own error is of the order of the
    squared residual over the gap to the next eigenvalue: a tolerance of 5 % gives most values to well below 1 %.

    A search that starts at an eigenvector may miss another one whose eigenvalue has become larger. Ritz vectors of a
    few Lanczos steps from random vectors, ``density(op, ..., keep=known)``, cost no more products, and the search
    starts with all of them.

    Args:
        op: A symmetric linear operator or matrix.
        start: Where to begin: the vector of an earlier search, on a matrix not far away. Default: a random vector.
        rtol: Residual over the eigenvalue at which the search ends. (Not over the largest in size: beside a large
            negative one, any direction without curvature would pass.)
        most: Products allowed.
        seed: Seed of the random vector.
        basis: Vectors held at once; by default as many as fit in a gigabyte with their products, 4 to 32.
        known: Vectors whose products are known; `start` is turned to if they are not enough.

    >>> A = torch.diag(torch.arange(50.0, dtype=torch.float64))
    >>> cold = leading_eigenpair(A)
    >>> warm = leading_eigenpair(A + 0.01, cold.vector)
    >>> bool(cold.residual < 0.05 * 49), warm.products < cold.products
    (True, True)
    """
    n = check_square(op, "eigenvalues")
    check_number("rtol", rtol, 0.0, strictly=True)
    check_count("most", most, 1, "the number of products")
    check_that(known is None or isinstance(known, RitzPairs), "known", known, "RitzPairs that a density has kept")
    if basis is not None:
        check_count("basis", basis, min(n, _KEPT + 1), "vectors held at once")
    first = start if start is None else start_vectors(op, check_tensor("start", start, (1,)))[0]
    gaussian = Probes(n, 1, seed, "gaussian", op.dtype, op.device)
    space = RitzPairs() if known is None else known.copy()
    search = eigenpair_iteration(gaussian, first, space, rtol=rtol, most=most, basis=basis)
    return answer(search, lambda V: multiply(op, V))


def eigenpair_iteration(
    fresh: Probes,
    start: Float[Tensor, "n"] | None,
    space: RitzPairs,
    *,
    rtol: float,
    most: int,
    basis: int | None = None,
) -> Iteration[LeadingEigenpair]:
    """`leading_eigenpair` by reverse communication.

    Args:
        fresh: One random vector, to begin with where nothing is known.
        start: As for `leading_eigenpair`.
        space: What is known already; the search works in its memory, and leaves there the space that it has searched.
        rtol: As for `leading_eigenpair`.
        most: As for `leading_eigenpair`.
        basis: As for `leading_eigenpair`.
    """
    search = _Search(fresh, space, basis)
    if len(space):
        search.settle(len(space))
    if not search.within(rtol) and (start is not None or not search.count):
        yield from search.enter(fresh.vector(0) if start is None else start)
    while not search.within(rtol) and search.products < most:
        before = search.products
        yield from search.grow()
        if search.products == before:
            break
    return search.found(rtol)


Growth = Generator[Tensor, Tensor, None]
"""What asks for products and changes the search."""


class _Search:
    """Orthonormal vectors V, their products A V, and the best Ritz pair of their span, in the memory of known pairs."""

    def __init__(self, fresh: Probes, space: RitzPairs, basis: int | None) -> None:
        size = None if basis is None else min(fresh.dim, basis)
        self.V, self.AV = space.room(fresh.dim, fresh.dtype, fresh.device, size)
        self.width, self.products, self.count, self._space = len(self.V), 0, 0, space
        self.T = torch.zeros(self.width, self.width, dtype=torch.float64, device="cpu")
        self._rest = space.scratch(self.V[0])

    def within(self, rtol: float) -> bool:
        """Whether the best pair is good enough; what rounding leaves of a zero is."""
        rounding = 10 * torch.finfo(self.V.dtype).eps
        return self.count > 0 and self.residual <= max(rtol * abs(self.value), rounding * self.size)

    def settle(self, count: int) -> None:
        """Begin with vectors whose products are known: an orthonormal basis of the best part of their span."""
        X, AX = self.V[:count], self.AV[:count]
        sizes, mixed = torch.linalg.eigh(_inner(X, X))
        sound = sizes > _DEPENDENT * sizes[-1]
        W = (mixed[:, sound] / sizes[sound].sqrt()).T
        T = W @ _inner(X, AX) @ W.T
        values, ritz = torch.linalg.eigh((T + T.T) / 2)
        kept = min(len(values), self.width - 1)
        self._mix(ritz.T[-kept:] @ W)

    def enter(self, vector: Tensor) -> Growth:
        """Add a direction, unless it has been searched already."""
        if self.count == self.width:
            self._mix(self._ritz[:, -_KEPT:].T)
        V, new, left = self.V[: self.count], self.V[self.count], 1.0
        torch.div(vector, _length(vector), out=new)
        for _ in range(2 if self.count else 0):
            new.addmv_(V.T, V @ new, alpha=-1)
            left = _length(new)
            if left >= _CANCELLED:
                break
        if left >= _LOST:
            new.div_(left)
            yield from self._extend()

    def _extend(self) -> Growth:
        """Ask for the product with the next row of V."""
        j = self.count
        self.AV[j] = (yield self.V[j, :, None])[:, 0]
        self.count, self.products = j + 1, self.products + 1
        self._space.hold(self.count)
        inner = _inner(self.V[: j + 1], self.AV[j : j + 1])[:, 0]
        self.T[j, : j + 1] = self.T[: j + 1, j] = inner
        self._solve()

    def _solve(self) -> None:
        values, vectors = torch.linalg.eigh(self.T[: self.count, : self.count])
        self.value, self.size = float(values[-1]), float(values.abs().max())
        self._ritz = vectors
        best = vectors[:, -1].to(self.V)
        torch.mv(self.AV[: self.count].T, best, out=self._rest)
        self._rest.addmv_(self.V[: self.count].T, best, alpha=-self.value)
        self.residual = _length(self._rest)

    def grow(self) -> Growth:
        """One more direction, if there is one."""
        if self.residual != 0 and not (self.count == self.width == self.V.shape[1]):
            yield from self.enter(self._rest)

    def _mix(self, W: Float[Tensor, "k count"]) -> None:
        """Go on with some combinations of the vectors, in their place; piece by piece, so that nothing is copied."""
        count, mixed = W.shape[1], W.to(self.V)
        for rows in (self.V, self.AV):
            for piece in rows[:count].split(_PIECE_ENTRIES, dim=1):
                piece[: len(W)] = mixed @ piece
        self.count = len(W)
        self._space.hold(self.count)
        inner = _inner(self.V[: self.count], self.AV[: self.count])
        self.T[: self.count, : self.count] = (inner + inner.T) / 2
        self._solve()

    def found(self, rtol: float) -> LeadingEigenpair:
        """The best pair as it is."""
        vector = self.V[: self.count].T @ self._ritz[:, -1].to(self.V)
        return LeadingEigenpair(
            self.value, vector.div_(_length(vector)), self.residual, self.within(rtol), self.products
        )


def _inner(A: Tensor, B: Tensor) -> Tensor:
    """``A B^T`` of long rows."""
    return inner_products(A, B).cpu()


def _length(vector: Tensor) -> float:
    return float(row_lengths(vector[None])[0])
