"""Blocks between a value parameter (rows) and a score parameter (columns).

    outer       m_na (R C_n V^T J_n P)[b, d] p_nc / s        functional       (Z^T J_n P)[a, d] (R g_n)_b p_nc / s

with R behind the value parameter, Z the content that attention averages, ``m = A Z``, p and P of the score parameter.
A matrix Omega[b, d] sees them as ``Y = sum_n (gamma_n m_n + Z^T z_n) p_n^T``, ``gamma_n = <R C_n V^T J_n P, Omega>``,
``z_n = J_n P Omega^T R g_n``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.layer.head_tangent import Summands
from hessianlens.layer.sketch.unfolding import RANK, Points, Unfolding
from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature
from hessianlens.operators.exponent_scaling import scale_to_unit_maximum

_WORKSPACE_BYTES = 2**25
"""Room for what a stack of random matrices makes of every pair of tokens."""


class ValueScoreBlock(Unfolding):
    """A value parameter and a score parameter, of one head or of two.

    Args:
        row: Head of the value parameter.
        value: How it enters.
        column: Head of the score parameter.
        score: How that enters.
        loss: Gradient and curvature of the loss.
        parts: Which summands.
    """

    def __init__(
        self,
        row: HeadState,
        value: ValuePort,
        column: HeadState,
        score: ScorePort,
        loss: LossDerivatives,
        parts: Summands,
    ) -> None:
        assert isinstance(loss.curvature, UncoupledCurvature)
        self.left, self.right = value.width, score.matrix.shape[-1]
        self._head, self._curvature, self._gradient = column, loss.curvature, loss.gradient
        self._outer, self._functional = parts.outer, parts.functional and row is column
        (self._P, p), (self._v, v) = scale_to_unit_maximum(score.matrix), scale_to_unit_maximum(score.vector)
        self._m, self._Z, self._R = value.vector, value.content, value.readout
        self.unit = p * v / column.scale

    # --- responses ---------------------------------------------------------------------------------------------------

    def responses(self, left: Tensor, right: Tensor) -> Points:
        """As many at a time as there is room for."""
        step = max(1, _WORKSPACE_BYTES // (2 * self._head.scores.numel() * left.element_size()))
        some = zip(left.split(step), right.split(step), strict=True)
        rows = torch.cat([self._rows(b, e) for b, e in some])
        return Points(rows, rows)

    def _rows(self, left: Tensor, right: Tensor) -> Tensor:
        """Y, ``[k, (a c)]``."""
        E = left if self._R is None else left @ self._R
        PB = _seen(right, self._P)  # [s, k, r, l]
        T = self._m.new_zeros(self._m.shape[0], len(left), *self._m.shape[1:])
        if self._functional:
            seen = _seen(E, self._gradient).mT @ PB  # [s, k, n, l]
            jvp = self._head.jacobian.apply_rows(seen.transpose(0, 1)).transpose(0, 1)
            T = (jvp.flatten(1, 2) @ self._Z).view(T.shape)
        if self._outer:
            T += self._gammas(E, PB)[..., None] * self._m[:, None]
        rows = T.permute(1, 3, 0, 2).reshape(len(left) * T.shape[-1], -1)  # [(k a), (s n)]
        return (rows @ self._v.flatten(0, 1)).view(len(left), -1).double()

    def _gammas(self, E: Tensor, PB: Tensor) -> Tensor:
        """``<C_n V^T J_n P, Omega>``, ``[s, k, n]``."""
        J, V = self._head.jacobian, self._head.values
        if not isinstance(self._curvature, ScalarCurvature):
            return self._general_gammas(E, PB)
        VE = _seen(E, V)  # [s, k, r, l]
        total = PB.new_zeros(*PB.shape[:2], J.shape[1])
        if J.diagonal is not None:
            total += (VE * PB).sum(2) @ J.diagonal.mT
        if J.left is not None and J.right is not None:
            for left, right in zip(J.left.unbind(-1), J.right.unbind(-1), strict=True):
                inner = (VE.flatten(1, 2) @ left.mT) * (PB.flatten(1, 2) @ right.mT)
                total += inner.view(*PB.shape[:3], -1).sum(2)
        if J.dense is not None:
            total += (VE.mT @ PB).flatten(2) @ J.dense.flatten(2).mT
        return self._curvature.values[:, None] * total

    def _general_gammas(self, E: Tensor, PB: Tensor) -> Tensor:
        """The same under any curvature, some tokens at a time."""
        J, V, (s, k, r, length) = self._head.jacobian, self._head.values, PB.shape
        columns = PB.flatten(1, 2).mT[:, None]  # [s, 1, l, (k r)]
        each = E.flatten(0, 1)[:, None, None]  # [(k r), 1, 1, f]
        total = PB.new_empty(s, k, J.shape[1])
        step = max(1, _WORKSPACE_BYTES // (s * k * r * max(length, V.shape[-1]) * PB.element_size()))
        for start in range(0, J.shape[1], step):
            stop = min(start + step, J.shape[1])
            jvp = V.mT[:, None] @ J.tokens(start, stop).apply(columns)  # [s, n, f, (k r)]
            hvp = self._curvature.at(slice(start, stop)).apply(each.expand(-1, s, stop - start, -1).clone())
            found = vecdot(hvp, jvp.permute(3, 0, 1, 2)).unflatten(0, (k, r)).sum(1)
            total[..., start:stop] = found.transpose(0, 1)
        return total

    # --- directions --------------------------------------------------------------------------------------------------

    def mean(self) -> Points:
        """``sum_n m_n p_n^T``."""
        Y = (self._m.flatten(0, 1).T @ self._v.flatten(0, 1)).flatten()[None].double()
        return Points(Y, Y)

    def small(self, directions: Points) -> Tensor:
        """``sum_n phi_n R C_n V^T J_n P`` and ``sum_n R g_n (P^T J_n^T Z Y p_n)^T``."""
        Y = directions.vectors.to(self._P).view(-1, self._Z.shape[-1], self._v.shape[-1])
        total = self._P.new_zeros(len(Y), self._head.values.shape[-1], self.right)
        if self._outer:
            total += self._outer_small(vecdot(self._m @ Y[:, None], self._v))
        if self._functional:
            seen = (self._v @ Y.mT[:, None]) @ self._Z.mT  # [k, s, n, l]
            vjp = self._head.jacobian.transpose().apply_rows(seen)
            total += (self._gradient.mT @ (vjp @ self._P)).sum(1)
        return (total if self._R is None else self._R @ total).double()

    def _outer_small(self, along: Tensor) -> Tensor:
        """``sum_n along_n C_n V^T J_n P``, ``[k, f, d]``."""
        J, V = self._head.jacobian, self._head.values
        if isinstance(self._curvature, ScalarCurvature):
            return (V.mT @ (_summed(J, along * self._curvature.values) @ self._P)).sum(1)
        total = self._P.new_zeros(len(along), V.shape[-1], self.right)
        step = max(1, _WORKSPACE_BYTES // (2 * V.numel() * V.element_size()))
        for start in range(0, J.shape[1], step):
            stop = min(start + step, J.shape[1])
            rows = V.permute(1, 0, 2)[:, :, None].expand(-1, -1, stop - start, -1)
            hvp = self._curvature.at(slice(start, stop)).apply(rows.clone())  # [l, s, n, f]: (V C_n)_l
            vjp = J.tokens(start, stop).transpose().apply(hvp.permute(1, 2, 0, 3))  # [s, n, m, f]
            some = along[..., start:stop].transpose(0, 1)
            summed = (some @ vjp.flatten(2)).unflatten(2, vjp.shape[2:])  # [s, k, m, f]
            total += (summed.mT @ self._P[:, None]).sum(0)
        return total

    # --- costs -------------------------------------------------------------------------------------------------------

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        """Tokens that carry a loss, length, features, entries of Y."""
        s, n, length = self._head.scores.shape
        return s * n, length, self._head.values.shape[-1], self._Z.shape[-1] * self._v.shape[-1]

    @property
    def set_up_cost(self) -> float:
        """Nothing."""
        return 0.0

    @property
    def probe_cost(self) -> float:
        """Thin products, ``Z^T z_n`` and the sum over tokens."""
        tokens, length, features, entries = self._sizes
        found = float(tokens * entries + tokens * RANK * (self.left + self.right))
        if self._functional:
            found += tokens * length * (RANK + self._Z.shape[-1])
        if self._outer:
            scalar = isinstance(self._curvature, ScalarCurvature)
            found += tokens * RANK * (2 * length if scalar else (length + features) * features)
        return found

    @property
    def direction_cost(self) -> float:
        """The same, backwards."""
        tokens, length, features, entries = self._sizes
        found = float(tokens * entries)
        if self._functional:
            found += tokens * length * (self._Z.shape[-1] + self.right) + tokens * features * self.right
        if self._outer:
            scalar = isinstance(self._curvature, ScalarCurvature)
            found += tokens * length * (length + self.right) if scalar else tokens * length * features * features
        return found


def _seen(side: Tensor, rows: Tensor) -> Tensor:
    """What random vectors ``[k, r, .]`` make of every token, ``[s, k, r, l]``, in one product."""
    return (rows @ side.flatten(0, 1).T).mT.unflatten(1, side.shape[:2])


def _summed(rows: RowMatrices, weights: Tensor) -> Tensor:
    """``sum_n weights_n R_n`` of every sequence, ``[k, s, l, m]``."""
    total = weights.new_zeros(*weights.shape[:2], rows.shape[2], rows.shape[2])
    if rows.diagonal is not None:
        torch.diagonal(total, dim1=-2, dim2=-1).add_((weights[:, :, None] @ rows.diagonal)[:, :, 0])
    if rows.left is not None and rows.right is not None:
        for left, right in zip(rows.left.unbind(-1), rows.right.unbind(-1), strict=True):
            total += (weights[..., None] * left).mT @ right
    if rows.dense is not None:
        total += (weights.transpose(0, 1) @ rows.dense.flatten(2)).unflatten(2, rows.shape[2:] * 2).transpose(0, 1)
    return total
