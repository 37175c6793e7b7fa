"""Diagonals of a layer's diagonal blocks, and their traces, without a matrix a token.

Where ``C_i = c_i I``, traces come from Gram matrices. With ``J_i = diag(b) + l r^T`` and ``W = V V^T``, the block
``sum_i p_i p_i^T (x) P^T M_i P / s^2`` of a parameter with vector p and matrix P has the trace
``sum_i |p_i|^2 tr(P^T M_i P) / s^2`` with

    tr(P' J' W J P) = b' (W o P P') b + 2 (P' (b o W l)) . (P' r) + |V' l|^2 |P' r|^2
    tr(P' D P)      = diag(D) . |P|^2 + (P' left) . (P' right).

Diagonals, for any loss that couples no two tokens, are ``sum_i p_ia^2 (P^T M_i P)_bb / s^2``, from ``V^T J_i P`` and
``D_i P`` of some tokens at a time.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature
from hessianlens.theory.head_tangent import Summands

_WORKSPACE_BYTES = 2**22
"""``J_i P`` of the tokens that are taken at once."""


class HeadDiagonals:
    """Diagonals and traces of the diagonal blocks of one head.

    Args:
        head: The head, centred.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, head: HeadState, loss: LossDerivatives) -> None:
        self._head, self._loss = head, loss

    def trace(self, name: str, parts: Summands) -> Tensor | None:
        """The trace of a parameter's block; None where it takes the block. The T-functional summand has none."""
        curvature, port = self._loss.curvature, self._head.score_ports.get(name)
        if isinstance(curvature, ScalarCurvature) and port is not None and self._has_gram(port):
            return self._score_trace(port, curvature.values, parts)
        found = self.diagonal(name, parts)
        return None if found is None else found.sum()

    def diagonal(self, name: str, parts: Summands) -> Tensor | None:
        """The diagonal of a parameter's block, shaped as the parameter; None where it takes the block."""
        curvature, port = self._loss.curvature, self._head.score_ports.get(name)
        if not isinstance(curvature, UncoupledCurvature):
            return None
        if port is None:
            return self._value_diagonal(self._head.value_ports[name], curvature, parts)
        if port.key_turn is not None:
            return None
        squares = self._score_squares(port, curvature, parts).flatten(0, 1)
        found = port.vector.flatten(0, 1).square().T @ squares / self._head.scale**2
        return found if port.vector_axis == 0 else found.T

    def _value_diagonal(self, port: ValuePort, curvature: UncoupledCurvature, parts: Summands) -> Tensor:
        """``sum_i m_ia^2 (R C_i R')_bb`` with R behind the weight."""
        found, like = port.vector.new_zeros(port.vector.shape[2], port.width), port.vector
        if not parts.outer:
            return found
        R = torch.eye(port.width, dtype=like.dtype, device=like.device) if port.readout is None else port.readout
        if isinstance(curvature, ScalarCurvature):
            numbers = curvature.values.flatten() @ like.flatten(0, 1).square()
            return torch.outer(numbers, R.square().sum(-1))
        step = max(1, _WORKSPACE_BYTES // (like.shape[0] * R.numel() * R.element_size()))
        for start in range(0, like.shape[1], step):
            some = like[:, start : start + step]
            each = R[:, None, None].expand(-1, *some.shape[:2], -1)
            bent = curvature.at(slice(start, start + step)).apply(each.clone())
            found += some.flatten(0, 1).square().T @ (bent * each).sum(-1).flatten(1).T
        return found

    def _score_squares(self, port: ScorePort, curvature: UncoupledCurvature, parts: Summands) -> Tensor:
        """``(P' M_i P)_bb``, ``[s, i, b]``."""
        J, V = self._head.jacobian, self._head.values
        found = port.matrix.new_zeros(*J.shape[:2], port.matrix.shape[2])
        width = J.shape[0] * J.shape[2] * max(V.shape[2], found.shape[2]) * V.element_size()
        step = max(1, _WORKSPACE_BYTES // width)
        for start in range(0, J.shape[1], step):
            stop = min(start + step, J.shape[1])
            P = port.matrices_at(start, stop)
            if parts.outer:
                some = curvature.at(slice(start, stop))
                found[:, start:stop] += self._outer_squares(J.tokens(start, stop).apply(P), some)
            if parts.functional:
                found[:, start:stop] += (self._curvature.tokens(start, stop).apply(P) * P).sum(2)
        return found

    def _outer_squares(self, JP: Tensor, curvature: UncoupledCurvature) -> Tensor:
        """``(P' J_i' V C_i V' J_i P)_bb``, with ``V V'`` where sequences are shorter than values are wide."""
        V = self._head.values
        if isinstance(curvature, ScalarCurvature) and V.shape[1] < V.shape[2]:
            return curvature.values[..., None] * (JP * (self._gram[:, None] @ JP)).sum(2)
        S = (V.mT[:, None] @ JP).permute(3, 0, 1, 2)
        return (curvature.apply(S.clone()) * S).sum(-1).permute(1, 2, 0)

    def _has_gram(self, port: ScorePort) -> bool:
        return port.query_turn is None and port.key_turn is None and self._head.jacobian.dense is None

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
