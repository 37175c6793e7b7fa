"""Tokens times changes of a weight, and back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

_LOPSIDED = 8.0
"""Length of the mean row, over the largest deviation from it, beyond which rounding of the mean would be seen."""


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
    >>> change = torch.eye(2)[..., None]
    >>> whole, relative = Projection(X).forward(change, False), Projection(X).forward(change, True)
    >>> whole.each[0].tolist(), relative.each[0].tolist(), relative.common[0].tolist()
    ([[1.0, 50.0], [3.0, 50.0]], [[-1.0, 0.0], [1.0, 0.0]], [[2.0, 50.0]])
    """

    def __init__(self, rows: Tensor) -> None:
        self._sequences, self._length, width = rows.shape
        self.rows = rows.reshape(-1, width)
        self._turned = self.rows.T
        self._mean = self.rows.mean(0, keepdim=True)

    @cached_property
    def lopsided(self) -> bool:
        """Whether rows are worth keeping relative to their mean; differences are not kept to tell."""
        away = torch.cdist(self.rows, self._mean, compute_mode="donot_use_mm_for_euclid_dist")
        return bool(self._mean.norm() > _LOPSIDED * away.max())

    @cached_property
    def _centred(self) -> Tensor:
        return self.rows - self._mean

    def forward(self, change: Tensor, relative: bool) -> Projected:
        """``X dW`` for changes ``[p, q, z]`` of a weight, of rows as they are or relative to their mean."""
        if not relative:
            return Projected(self._by_sequence(_times(self.rows, change)), None)
        common = self._mean @ change.permute(2, 0, 1)
        return Projected(self._by_sequence(_times(self._centred, change)), common)

    def _by_sequence(self, product: Tensor) -> Tensor:
        return product.view(-1, self._length, product.shape[-1])

    def back(self, gradient: Tensor, relative: bool, total: Tensor | None) -> Tensor:
        """``sum_n x_n g_n^T`` as ``[p, q, z]`` for a gradient ``[(z s), n, q]``.

        Args:
            gradient: The g.
            relative: Whether to take the rows and their mean one by one.
            total: Then the sum of the g, ``[z, 1, q]``; None if it is zero.
        """
        turned, (sequences, _, width) = self._centred.T if relative else self._turned, gradient.shape
        if sequences == self._sequences:
            product = torch.mm(turned, gradient.reshape(-1, width)).unsqueeze(2)
        else:
            product = (turned @ gradient.reshape(-1, turned.shape[1], width)).permute(1, 2, 0)
        if total is not None:
            product.addcmul_(self._mean.T[..., None], total.permute(1, 2, 0))
        return product


def _times(rows: Tensor, change: Tensor) -> Tensor:
    """Rows times changes ``[p, q, z]``, vector by vector: ``[n, q]`` for one of them, else ``[z, n, q]``."""
    return torch.mm(rows, change[..., 0]) if change.shape[2] == 1 else rows @ change.permute(2, 0, 1)
