"""An elementwise function divided by its row sum."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible, function_name
from hessianlens.attention.activations.elementwise import Elementwise, Linear, ReLU
from hessianlens.attention.rows import RowMatrices, quotient_rows
from hessianlens.errors import check_that
from hessianlens.near_one_hot import Peak


class RowNormalised(Activation):
    """``A_ij = a(T_ij) / sum_l a(T_il)`` for an elementwise function a.

    With ``S`` the row sum, ``J_i = diag(a'/S) - A_i (a'/S)^T`` (not symmetric) and, with ``c = w - A_i . w``,
    ``D_i(w) = diag(a'' c / S) - (a'/S) (a' c/S)^T - (a' c/S) (a'/S)^T``. A row whose sum is exactly zero is zero, with
    zero derivatives.
    """

    fixed_sum = True

    def __init__(self, inner: Elementwise, name: str | None = None) -> None:
        check_that(isinstance(inner, Elementwise), "inner", inner, "an elementwise activation")
        self.inner, self.name = inner, function_name(inner, f"{inner.name} / row sum" if name is None else name)

    def _parts(self, scores: Scores, visible: Visible) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Value, first and second derivative of the function, and one over the row sum."""
        a, first, second = self.inner.derivatives(scores.masked_fill(~visible, 0))
        total = torch.where(visible, a, 0).sum(-1, keepdim=True)
        empty = total == 0
        inverse = torch.where(empty, 0, 1 / torch.where(empty, torch.ones_like(total), total))
        return (
            a,
            torch.where(visible, first, 0),
            None if second is None else torch.where(visible, second, 0),
            inverse,
        )

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """Every row divided by its sum."""
        a = self.inner.value(scores, visible)
        total = a.sum(-1, keepdim=True)
        empty = total == 0
        return torch.where(empty, 0, a / torch.where(empty, torch.ones_like(total), total))

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """Diagonal minus rank one, split at the largest weight."""
        _, first, _, inverse = self._parts(scores, visible)
        return quotient_rows(Peak(self.value(scores, visible)), first * inverse)

    def curvature(self, scores: Scores, visible: Visible, weights: Scores) -> RowMatrices:
        """Diagonal plus rank two."""
        _, first, second, inverse = self._parts(scores, visible)
        A, slope = self.value(scores, visible), first * inverse
        centred = Peak(A).centred(weights)
        left, right = torch.stack([slope, slope * centred], -1), -torch.stack([slope * centred, slope], -1)
        diagonal = None if second is None else second * inverse * centred
        return RowMatrices(tuple(A.shape), diagonal=diagonal, left=left, right=right)


def normalised_relu() -> RowNormalised:
    """ReLU divided by its row sum."""
    return RowNormalised(ReLU(), "relu_normalised")


def raw_row_sum() -> RowNormalised:
    """The raw scores divided by their row sum."""
    return RowNormalised(Linear(), "row_sum")
