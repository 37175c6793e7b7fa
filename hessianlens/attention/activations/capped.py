"""Softmax of scores that are softly capped."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible
from hessianlens.attention.activations.softmax import Softmax
from hessianlens.attention.rows import RowMatrices
from hessianlens.errors import check_number


class SoftCapped(Activation):
    """``a(T) = softmax(e(T))`` with ``e = c tanh(T / c)``, as in Gemma 2.

    With J and D those of softmax at e, the derivatives are ``J diag(e')`` and
    ``diag(e') D(w) diag(e') + diag(e'' J^T w)``; J is not symmetric any more.

    Args:
        cap: c, which no score exceeds.

    >>> a = SoftCapped(1.0).value(torch.tensor([[[0.0, 100.0]]]), torch.tensor([[[True, True]]]))
    >>> round(float(a[0, 0, 1] / a[0, 0, 0]), 3)
    2.718
    """

    fixed_sum = True

    def __init__(self, cap: float) -> None:
        self.cap = check_number("cap", cap, 0.0, strictly=True)
        self.name = f"softmax, soft-capped at {cap:g}"
        self._softmax = Softmax()

    def _capped(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """E and its two derivatives."""
        t = torch.tanh(scores / self.cap)
        first = 1 - t.square()
        return self.cap * t, first, -2 / self.cap * t * first

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """Softmax of the capped scores."""
        return self._softmax.value(self.cap * torch.tanh(scores / self.cap), visible)

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """``J diag(e')``."""
        e, first, _ = self._capped(scores)
        return _scaled(self._softmax.jacobian(e, visible), None, first)

    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """``diag(e') D(w) diag(e') + diag(e'' J^T w)``."""
        e, first, second = self._capped(scores)
        curvature = _scaled(self._softmax.curvature(e, visible, weights), first, first)
        vjp = self._softmax.jacobian(e, visible).transpose().apply_rows(weights[None])[0]
        own = second * vjp if curvature.diagonal is None else curvature.diagonal + second * vjp
        return RowMatrices(curvature.shape, own, curvature.left, curvature.right, curvature.dense)


def _scaled(rows: RowMatrices, left: Tensor | None, right: Tensor) -> RowMatrices:
    """``diag(left) R diag(right)``; a missing left side is one."""
    both = right if left is None else left * right
    diagonal = None if rows.diagonal is None else rows.diagonal * both
    columns = rows.left if rows.left is None or left is None else rows.left * left[..., None]
    others = None if rows.right is None else rows.right * right[..., None]
    return RowMatrices(rows.shape, diagonal, columns, others)
