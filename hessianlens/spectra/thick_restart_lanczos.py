"""Eigenvalues at the ends of a spectrum by Lanczos with thick restarts; residuals come with the Lanczos vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Multiply = Callable[[Tensor], Tensor]

STEPS_BEFORE_FIRST_LOOK = 8
"""Lanczos steps beside two per eigenvalue before convergence is believed: a short space may miss the largest one."""
BASIS_MIN, BASIS_MAX = 20, 48
"""Lanczos vectors that are held at once, if there is memory for them."""
_WORKSPACE_BYTES = 2**30
_ROUNDING = 10


@dataclass(frozen=True, eq=False)
class RitzEigenpairs:
    """Eigenpairs that were found.

    Attributes:
        values: Ritz values, in no order.
        vectors: Unit Ritz vectors as columns.
        residuals: ``|A v - value v|``.
        converged: Whether all that were asked for are within the tolerance; those that are not are left out.
        products: Products with A.
    """

    values: Float[Tensor, "k"]
    vectors: Float[Tensor, "n k"]
    residuals: Float[Tensor, "k"]
    converged: bool
    products: int


def basis_size(n: int, total: int) -> int:
    """Lanczos vectors held at once for so many eigenvalues.

    >>> basis_size(10**4, 1), basis_size(10**7, 1), basis_size(30, 10)
    (50, 20, 30)
    """
    affordable = _WORKSPACE_BYTES // (8 * n)
    return min(n, max(2 * total + 1, BASIS_MIN, min(BASIS_MAX + 2 * total, affordable)))


class ThickRestartLanczos:
    """Orthonormal q_0, ..., q_j with ``A Q = Q H + w e_j^T``: H is kept whole, so that residuals are those of A itself.

    Ritz pairs are those of ``(H + H^T) / 2``. For ``v = Q y``

        |A v - theta v|^2 = |H y - theta y|^2 + |w|^2 y_j^2,

    without a further product. Where the basis is full it goes on with the best Ritz vectors and w (a thick restart, Wu
    and Simon 2000), which loses nothing of a symmetric A.

    Args:
        multiply: Products with A, of a vector in float64.
        fresh: From a number to a random vector; number 0 is the first, others are for invariant spaces.
        total: Eigenvalues asked for.
        order: From Ritz values to their indices, those asked for first.
        size: Vectors held at once.
    """

    def __init__(
        self,
        multiply: Multiply,
        fresh: Callable[[int], Tensor],
        total: int,
        order: Callable[[Tensor], Tensor],
        size: int,
    ) -> None:
        self._multiply, self._fresh, self._total, self._order = multiply, fresh, total, order
        start = fresh(0)
        self._n, self._size, self._drawn, self.products, self.restarts = len(start), size, 1, 0, 0
        self._Q = torch.empty(size + 1, self._n, dtype=torch.float64, device=start.device)
        self._H = torch.zeros(size + 1, size + 1, dtype=torch.float64, device="cpu")
        self._Q[0] = start.double() / start.double().norm()
        self._count, self._beta, self._scale, self._lost = 0, 0.0, 0.0, 0.0
        self._ritz: tuple[Tensor, Tensor] | None = None
        self._asymmetry = 0.0

    def step(self) -> None:
        """One product: ``A q_j``, and the direction in which it leaves the space."""
        j = self._count
        w = self._multiply(self._Q[j])
        self.products += 1
        basis = self._Q[: j + 1]
        self._scale = max(self._scale, float(w.norm()))
        column = basis @ w
        w = w - column @ basis
        again = basis @ w
        w = w - again @ basis
        self._H[: j + 1, j] = (column + again).cpu()
        self._count, self._beta = j + 1, float(w.norm())
        if self._beta <= _ROUNDING * torch.finfo(torch.float64).eps * self._scale * self._n**0.5:
            self._beta = 0.0
            w = self._new_direction()
        self._H[j + 1, j] = self._beta
        if j + 1 < self._n:
            self._Q[j + 1] = w / w.norm()
        self._ritz = None

    def _new_direction(self) -> Tensor:
        """A random vector outside of an invariant space."""
        w, basis = self._fresh(self._drawn).double(), self._Q[: self._count]
        self._drawn += 1
        for _ in range(2):
            w = w - (basis @ w) @ basis
        return w

    def _pairs(self) -> tuple[Tensor, Tensor]:
        """Ritz values and their coordinates."""
        if self._ritz is None:
            H = self._H[: self._count, : self._count]
            values, Y = torch.linalg.eigh((H + H.T) / 2)
            self._ritz = values, Y
        return self._ritz

    def residuals(self, chosen: Tensor) -> Tensor:
        """Of the chosen Ritz pairs."""
        values, Y = self._pairs()
        H, y = self._H[: self._count, : self._count], Y[:, chosen]
        inside = (H @ y - values[chosen] * y).norm(dim=0)
        return (inside.square() + (self._beta * y[-1]).square()).sqrt() + self._lost

    def within(self, tol: float, floor: float) -> Tensor | None:
        """Which of the wanted pairs are within the tolerance; None as long as the space is too small to tell.

        Args:
            tol: Residual over the eigenvalue.
            floor: Residual over the largest Ritz value in size that is rounding.
        """
        if self._count < min(self._size, 2 * self._total + STEPS_BEFORE_FIRST_LOOK) and self.restarts == 0:
            return None
        values, _ = self._pairs()
        chosen = self._order(values)[: self._total]
        allowed = (tol * values[chosen].abs()).clamp(min=floor * float(values.abs().max()))
        return self.residuals(chosen) <= allowed

    @property
    def asymmetry(self) -> tuple[float, float]:
        """The largest ``|q^T A p - p^T A q|`` of two Lanczos vectors, and the length of the longest product."""
        H = self._H[: self._count, : self._count]
        return max(self._asymmetry, float((H - H.T).abs().max())), self._scale

    @property
    def annihilated(self) -> bool:
        """Whether all products so far were zero."""
        return self._scale == 0

    @property
    def full(self) -> bool:
        """Whether the basis has no room for another vector."""
        return self._count >= self._size

    @property
    def complete(self) -> bool:
        """Whether the space is that of all vectors."""
        return self._count >= self._n

    def restart(self) -> None:
        """Go on with the best Ritz vectors and w."""
        values, Y = self._pairs()
        kept = self._order(values)[: min(self._size - 1, self._total + (self._size - self._total) // 2)]
        y, H = Y[:, kept], self._H[: self._count, : self._count]
        inner = y.T @ H @ y
        self._asymmetry = self.asymmetry[0]
        self._lost += float((H @ y - y @ inner).norm())  # what is not symmetric of A, by rounding
        follows, coupling, k = self._Q[self._count].clone(), self._beta * y[-1], len(kept)
        self._Q[:k] = y.T.to(self._Q) @ self._Q[: self._count]
        self._Q[k] = follows
        self._H.zero_()
        self._H[:k, :k], self._H[k, :k] = inner, coupling
        self._count, self._ritz = k, None
        self.restarts += 1

    def found(self, good: Tensor) -> RitzEigenpairs:
        """The wanted pairs that are within the tolerance.

        Args:
            good: What `within` said last.
        """
        values, Y = self._pairs()
        chosen = self._order(values)[: self._total][good]
        vectors = self._Q[: self._count].T @ Y[:, chosen].to(self._Q)
        lengths = vectors.norm(dim=0)
        where = vectors.device
        return RitzEigenpairs(
            values[chosen].to(where),
            vectors / lengths,
            self.residuals(chosen).to(where),
            len(chosen) == self._total,
            self.products,
        )


def lanczos_eigenpairs(search: ThickRestartLanczos, tol: float, floor: float, max_restarts: int) -> RitzEigenpairs:
    """Lanczos steps until all wanted pairs are within the tolerance, the space is complete or restarts are used up.

    Args:
        search: The space.
        tol: Residual over the eigenvalue.
        floor: Residual over the largest Ritz value in size that is rounding.
        max_restarts: Restarts allowed.

    >>> A = torch.diag(torch.arange(1.0, 101.0, dtype=torch.float64))
    >>> ones = torch.ones(100, dtype=torch.float64)
    >>> search = ThickRestartLanczos(lambda v: A @ v, lambda k: ones, 1, lambda values: torch.argsort(-values), 20)
    >>> found = lanczos_eigenpairs(search, 1e-8, 1e-15, 1000)
    >>> found.values, bool((A @ found.vectors - 100 * found.vectors).norm() <= 1e-6)
    (tensor([100.], dtype=torch.float64), True)
    """
    while True:
        good = search.within(tol, floor)
        if good is not None and (bool(good.all()) or search.complete):
            return search.found(good)
        if good is not None and search.full:
            if search.restarts >= max_restarts:
                return search.found(good)
            search.restart()
        search.step()
