"""Softmax over the visible entries of a row."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.attention.activations.base import Activation, Scores, Visible
from hessianlens.attention.rows import RowMatrices, quotient_rows
from hessianlens.peak import Peak


class Softmax(Activation):
    """``A_ij = exp(T_ij) / sum_l exp(T_il)``.

    ``J_i = diag(A_i) - A_i A_i^T`` and, with ``c = w - A_i . w``,
    ``D_i(w) = diag(A_i c) - (A_i c) A_i^T - A_i (A_i c)^T``: the second and third central moments of the row.

    >>> a = Softmax().value(torch.tensor([[[0.0, 0.0], [1.0, 5.0]]]), torch.tensor([[[True, True], [False, False]]]))
    >>> a[0].tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """

    name = "softmax"

    def value(self, scores: Scores, visible: Visible) -> Scores:
        """Softmax of the visible entries; zero in a row that sees nothing."""
        hidden = scores.masked_fill(~visible, -torch.inf)
        top = hidden.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min).detach()
        weights = (hidden - top).exp()
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, torch.ones_like(total), total)

    def jacobian(self, scores: Scores, visible: Visible) -> RowMatrices:
        """Covariance of the row's distribution: diagonal minus rank one, split at the largest weight."""
        peak = Peak(self.value(scores, visible))
        return quotient_rows(peak, peak.weights, kills_right=True)

    def curvature(self, scores: Scores, visible: Visible, weights: Tensor) -> RowMatrices:
        """Third central moment of the row's distribution along `weights`: diagonal plus rank two."""
        A = self.value(scores, visible)
        Ac = A * Peak(A).centred(weights)
        left, right = torch.stack([Ac, A], -1), -torch.stack([A, Ac], -1)
        return RowMatrices(tuple(A.shape), diagonal=Ac, left=left, right=right, kills_right=True, kills_left=True)
