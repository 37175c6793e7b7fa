"""Traces of a layer's diagonal blocks from Gram matrices alone, where ``C_i = c_i I``.

With ``J_i = diag(b) + l r^T`` and ``W = V V^T``, the block ``sum_i p_i p_i^T (x) P^T M_i P / s^2`` of a parameter with
vector p and matrix P has the trace ``sum_i |p_i|^2 tr(P^T M_i P) / s^2`` with

    tr(P' J' W J P) = b' (W o P P') b + 2 (P' (b o W l)) . (P' r) + |V' l|^2 |P' r|^2
    tr(P' D P)      = diag(D) . |P|^2 + (P' left) . (P' right),

so that no matrix a token is formed. A value parameter has ``sum_i c_i |m_i|^2`` times the square of what is behind it.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState, ScorePort
from hessianlens.losses import LossDerivatives, ScalarCurvature
from hessianlens.theory.head_tangent import Summands


class HeadTraces:
    """Traces of the diagonal blocks of one head.

    Args:
        head: The head, centred.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, head: HeadState, loss: LossDerivatives) -> None:
        self._head, self._loss = head, loss

    def trace(self, name: str, parts: Summands) -> Tensor | None:
        """The trace of a parameter's block; None where it takes the block. The T-functional summand has none."""
        curvature = self._loss.curvature
        if not isinstance(curvature, ScalarCurvature):
            return None
        if name in self._head.value_ports:
            value = self._head.value_ports[name]
            behind = value.width if value.readout is None else value.readout.square().sum()
            found = (curvature.values * value.vector.square().sum(-1)).sum() * behind
            return found if parts.outer else torch.zeros_like(found)
        port = self._head.score_ports[name]
        turned = port.query_turn is not None or port.key_turn is not None
        if turned or self._head.jacobian.dense is not None:
            return None
        return self._score_trace(port, curvature.values, parts)

    @cached_property
    def _gram(self) -> Tensor:
        return self._head.values @ self._head.values.mT

    @cached_property
    def _curvature(self) -> RowMatrices:
        return self._head.curvature(self._loss.gradient)

    @cached_property
    def _met_values(self) -> list[Tensor]:
        """``V' l`` for every column l of the low-rank part of J."""
        return _met(self._head.jacobian.left, self._head.values)

    def _score_trace(self, port: ScorePort, numbers: Tensor, parts: Summands) -> Tensor:
        each = torch.zeros_like(numbers)
        if parts.outer:
            each = each + numbers * self._outer(port.matrix)
        if parts.functional:
            each = each + _trace_between(self._curvature, port.matrix)
        return (each * port.vector.square().sum(-1)).sum() / self._head.scale**2

    def _outer(self, P: Tensor) -> Tensor:
        """``tr(P' J_i' W J_i P)`` for every token."""
        J, values = self._head.jacobian, self._met_values
        matrices = _met(J.right, P)
        total = torch.zeros(J.shape[:2], dtype=P.dtype, device=P.device)
        if J.diagonal is not None:
            total += vecdot(J.diagonal @ (self._gram * (P @ P.mT)), J.diagonal)
        for Vl, Pr in zip(values, matrices, strict=True):
            if J.diagonal is not None:
                total += 2 * vecdot((Vl @ self._head.values.mT * J.diagonal) @ P, Pr)
            for Vm, Pq in zip(values, matrices, strict=True):
                total += vecdot(Vm, Vl) * vecdot(Pq, Pr)
        return total


def _trace_between(D: RowMatrices, P: Tensor) -> Tensor:
    """``tr(P' D_i P)`` for every token."""
    total = torch.zeros(D.shape[:2], dtype=P.dtype, device=P.device)
    if D.diagonal is not None:
        total += (D.diagonal @ P.square().sum(-1, keepdim=True))[..., 0]
    for left, right in zip(_met(D.left, P), _met(D.right, P), strict=True):
        total += vecdot(left, right)
    return total


def _met(columns: Tensor | None, rows: Tensor) -> list[Tensor]:
    """``[s, i, .]``, what key tokens' rows sum up to with the weights of each column."""
    return [] if columns is None else [column @ rows for column in columns.unbind(-1)]
