"""Tokens times changes of several weights, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_LOPSIDED = 8.0
"""Length of the mean row, over the largest deviation from it, beyond which rounding of the mean would be seen."""
_TOGETHER = 2
"""Rows, over their width, from which on it pays to copy several weights beside each other for one product."""


@dataclass(frozen=True, eq=False)
class Projected:
    """``X dW`` for some changes of a weight; each vector z brings its own sequences.

    Attributes:
        each: ``x_n dW``, ``[(z s), n, q]``; of rows relative to their mean ``(x_n - mean) dW``.
        common: For these ``mean dW``, ``[z, 1, q]``.
    """

    each: Tensor
    common: Tensor | None


class Projection:
    """Rows ``[s, n, p]`` on which weights act from the right.

    Rows that have most of their length in common are kept relative to their mean too: where the common part cancels,
    the rest is there with all its digits.

    Args:
        rows: Tokens, or what else enters a weight.

    >>> X = torch.tensor([[[1.0, 50.0], [3.0, 50.0]]])
    >>> whole, relative = Projection(X).forward([torch.eye(2)[..., None]] * 2, [False, True])
    >>> whole.each[0].tolist(), relative.each[0].tolist(), relative.common[0].tolist()
    ([[1.0, 50.0], [3.0, 50.0]], [[-1.0, 0.0], [1.0, 0.0]], [[2.0, 50.0]])
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows, self._length = rows.flatten(0, 1), rows.shape[1]
        self._mean = self.rows.mean(0, keepdim=True)

    @cached_property
    def lopsided(self) -> bool:
        """Whether rows are worth keeping relative to their mean."""
        return bool(self._mean.norm() > _LOPSIDED * self._centred.norm(dim=1).max())

    @cached_property
    def _centred(self) -> Tensor:
        return self.rows - self._mean

    def forward(self, changes: Sequence[Tensor], relative: Sequence[bool]) -> list[Projected]:
        """``X dW`` for changes ``[p, q, z]`` of several weights, each of rows as they are or relative to their mean."""
        vectors = [change.permute(2, 0, 1) for change in changes]
        if any(relative) or len(self.rows) < _TOGETHER * self.rows.shape[1]:
            return [self._one(v, without) for v, without in zip(vectors, relative, strict=True)]
        together = _product(self.rows, torch.cat(vectors, 2) if len(vectors) > 1 else vectors[0])
        pieces = together.split([v.shape[2] for v in vectors], 2)
        return [Projected(self._by_sequence(piece), None) for piece in pieces]

    def _one(self, vectors: Tensor, relative: bool) -> Projected:
        if not relative:
            return Projected(self._by_sequence(_product(self.rows, vectors)), None)
        return Projected(self._by_sequence(_product(self._centred, vectors)), _product(self._mean, vectors))

    def _by_sequence(self, product: Tensor) -> Tensor:
        return product.view(-1, self._length, product.shape[2])

    def back(self, gradient: Tensor, relative: bool, total: Tensor | None) -> Tensor:
        """``sum_n x_n g_n^T`` as ``[p, q, z]`` for a gradient ``[(z s), n, q]``.

        Args:
            gradient: The g.
            relative: Whether to take the rows and their mean one by one.
            total: Then the sum of the g, ``[z, 1, q]``; None if it is zero.
        """
        flat = gradient.reshape(-1, len(self.rows), gradient.shape[2])
        product = _product((self._centred if relative else self.rows).T, flat)
        if total is not None:
            product.addcmul_(self._mean.T, total)
        return product.permute(1, 2, 0)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """A matrix times several, of which there is mostly one."""
    return torch.mm(left, right[0])[None] if len(right) == 1 else left @ right
