"""Softmax over the visible entries of a row, of scores that may be softly capped."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible
from hessianlens.attention.rows import RowColumns, RowMatrices, RowTangent, quotient_rows
from hessianlens.errors import check_number
from hessianlens.near_one_hot import Peak


class Softmax(Activation):
    """``A_ij = exp(T_ij) / sum_l exp(T_il)``.

    ``J_i = diag(A_i) - A_i A_i^T`` and, with ``c = w - A_i . w``,
    ``D_i(w) = diag(A_i c) - (A_i c) A_i^T - A_i (A_i c)^T``: the second and third central moments of the row.

    >>> a = Softmax().value(torch.tensor([[[0.0, 0.0], [1.0, 5.0]]]), torch.tensor([[[True, True], [False, False]]]))
    >>> a[0].tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """

    name = "softmax"
    shift_invariant = True
    fixed_sum = True

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """Softmax of the visible entries; zero in a row that sees nothing."""
        # The least finite number, not minus infinity: a row that sees nothing would have weights and derivatives NaN.
        hidden = ~visible
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        return weights.masked_fill(hidden, 0.0)

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """Covariance of the row's distribution: diagonal minus rank one, split at the largest weight."""
        peak = Peak(self.value(scores, visible))
        return quotient_rows(peak, peak.weights)

    def curvature(self, scores: Scores, visible: Visible, weights: Tensor) -> RowMatrices:
        """Third central moment of the row's distribution along `weights`: diagonal plus rank two."""
        A = self.value(scores, visible)
        Ac = A * Peak(A).centred(weights)
        left, right = torch.stack([Ac, A], -1), -torch.stack([A, Ac], -1)
        return RowMatrices(tuple(A.shape), diagonal=Ac, left=left, right=right)

    def tangent(self, value: Scores, weights: Scores) -> SoftmaxTangent:
        """Nothing but centred rows."""
        return SoftmaxTangent(value, weights)


class SoftmaxTangent(RowTangent):
    """``J t = A c(t)`` and ``D(w) t = J (c(w) c(t))`` with ``c(v) = v - A . v``, entry by entry."""

    def __init__(self, value: Scores, weights: Scores) -> None:
        self._value, self._peak, self._weights = value, Peak(value), weights

    @cached_property
    def _centred(self) -> Tensor:
        return self._peak.centred(self._weights)

    def seen(self, change: Tensor) -> Tensor:
        """A common change of all scores of a row leaves the weights as they are."""
        return self._peak.centre_(change)

    def jvp(self, change: Tensor) -> Tensor:
        """``J t``."""
        return self._value * change

    def vjp(self, weights: Tensor | None, change: Tensor | None) -> Tensor:
        """``J (w + c(w_0) t)``."""
        if change is not None:
            weights = self._centred * change if weights is None else weights.addcmul_(self._centred, change)
        assert weights is not None
        return self._peak.centre_(weights).mul_(self._value)

    def jacobian_columns(self) -> RowColumns | None:
        """``diag(A) - A A^T``, split at the largest weight where it has to be."""
        if self._peak.close_to_one:
            return quotient_rows(self._peak, self._value).columns()
        return RowColumns(self._value, ((-1.0, self._value, self._value),))

    def curvature_columns(self) -> RowColumns:
        """``diag(A c) - (A c) A^T - A (A c)^T``."""
        A, Ac = self._value, self._value * self._centred
        return RowColumns(Ac, ((-1.0, Ac, A), (-1.0, A, Ac)))

    def held_tensors(self) -> list[Tensor]:
        """Weights, and the centred gradient with respect to them."""
        return [self._value, self._centred]


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
