"""Directions with large curvature that a run of Lanczos has met, kept with their products for a search after it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.errors import check_that, check_whole

_WORKSPACE = 2**30
"""Bytes of vectors and products that are kept at once."""


class RitzPairs:
    """The leading Ritz vectors of every Krylov space that was shown, and their products with A, which cost nothing.

    ``A Q = Q T + rest e_m^T`` gives ``A x = Q T y + y_m rest`` for ``x = Q y``: an eigenvector y of T is all it takes.

    Args:
        each: Vectors of each Krylov space; fewer where they would take more than a gigabyte.

    >>> from hessianlens.spectra import density
    >>> A, pairs = torch.diag(torch.arange(30.0, dtype=torch.float64)), RitzPairs()
    >>> found = density(A, probes=2, steps=4, keep=pairs)
    >>> torch.allclose(pairs.vectors @ A, pairs.products), len(pairs)
    (True, 4)
    """

    def __init__(self, each: int = 2) -> None:
        self.each = check_whole("each", each, 1)
        self._vectors: list[Tensor] = []
        self._products: list[Tensor] = []

    def add(self, vector: Float[Tensor, "n"], product: Float[Tensor, "n"]) -> None:
        """Keep another vector with its product."""
        known = isinstance(vector, Tensor) and isinstance(product, Tensor) and vector.shape == product.shape
        check_that(known and vector.ndim == 1, "vector", vector, "a vector [n], and its product, [n] too")
        self._vectors.append(vector)
        self._products.append(product)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self._vectors, self._products, strict=True)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def vectors(self) -> Float[Tensor, "k n"]:
        """A vector a row; not orthogonal to those of other Krylov spaces."""
        return torch.stack(self._vectors)

    @property
    def products(self) -> Float[Tensor, "k n"]:
        """Their products with A, row by row."""
        return torch.stack(self._products)

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
        for Q, t, left in zip(basis, T, rest, strict=True):
            room = _WORKSPACE // (2 * Q.shape[1] * Q.element_size()) - len(self)
            for y in torch.linalg.eigh(t)[1].T.flip(0)[: max(0, min(self.each, room))]:
                self.add(y.to(Q) @ Q, (t @ y).to(Q) @ Q + y[-1].to(Q) * left)
