"""Diagonals of a layer's diagonal blocks, and their traces, without a matrix per token.

The block ``sum_i p_i p_i' (x) P' M_i P / s^2`` of a score parameter with vector p and matrix P has the diagonal
``sum_i p_ia^2 (P' M_i P)_bb / s^2`` and the trace ``sum_i |p_i|^2 tr(P' M_i P) / s^2``. With ``M = J' V C V' J + D``,
``J_i = diag(b_i) + sum l_i r_i'`` and D alike, what they take are products of whole sequences:

    V' J_i P     = sum_l b_il v_l p_l' + (V' l_i) (P' r_i)'      the first of all tokens from one product with b
    (P' D_i P)_bb = sum_l e_il p_lb^2 + (P' left_i)_b (P' right_i)_b

and where ``C_i = c_i I`` (else see `outer_traces`), with the Gram matrix ``W = V V'``,

    tr(P' J' W J P) = b' (W o P P') b + 2 (P' (b o W l)) . (P' r) + |V' l|^2 |P' r|^2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.rows import RowColumns, RowMatrices
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.layer.head_tangent import HeadTangent, Summands
from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature

_WORKSPACE_BYTES = 2**22
"""What is formed of some tokens, or of some columns of P, at once."""
_BLOCK = 128
"""Key tokens whose part of a Gram matrix is formed at once; of a symmetric matrix only one half is."""


class HeadDiagonals:
    """Diagonals and traces of the diagonal blocks of one head.

    Args:
        tangent: The head, centred, and the gradient of the loss.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, tangent: HeadTangent, loss: LossDerivatives) -> None:
        self._tangent, self._head, self._loss = tangent, tangent.head, loss
        self._sums: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def trace(self, name: str, parts: Summands) -> Tensor | None:
        """The trace of a parameter's block; None where it takes the block.

        The T-functional summand has none where queries and keys are linear in their tokens, up to positions.
        """
        port = self._head.score_ports.get(name)
        if port is not None and self._in_columns(port):
            outer = self._outer_trace(name, port) if parts.outer else port.vector.new_zeros(port.vector.shape[:2])
            if outer is not None:
                each = outer + self._functional_traces(port.matrix) if parts.functional else outer
                return (each * port.vector.square().sum(-1)).sum() / self._head.scale**2
        found = self.diagonal(name, parts)
        return None if found is None else found.sum()

    def _outer_trace(self, name: str, port: ScorePort) -> Tensor | None:
        """``tr(P' J_i' V C_i V' J_i P)``, ``[s, i]``; None where it is no less work than the diagonal."""
        curvature = self._loss.curvature
        if isinstance(curvature, ScalarCurvature):
            return curvature.values * self._outer_traces(port.matrix)
        return None if self._paired_traces is None else self._paired_traces[name]

    @cached_property
    def _paired_traces(self) -> dict[str, Tensor] | None:
        """The same of queries and keys, under any curvature without coupling."""
        head, J, curvature = self._head, self._jacobian, self._loss.curvature
        if J is None or not isinstance(curvature, UncoupledCurvature):
            return None
        keys, weight = self._keys
        if keys is None or head.score_pair is None or not fits(head):
            return None
        found = outer_traces(head, J, curvature, weight, self._sum)
        return dict(zip(head.score_pair, found, strict=True))

    def diagonal(self, name: str, parts: Summands) -> Tensor | None:
        """The diagonal of a parameter's block, shaped as the parameter; None where it takes the block."""
        curvature, port = self._loss.curvature, self._head.score_ports.get(name)
        if not isinstance(curvature, UncoupledCurvature):
            return None
        if port is None:
            value = self._head.value_ports[name]
            return None if value.turn is not None else self._value_diagonal(value, curvature, parts)
        if port.key_turn is not None:
            return None
        squares = self._score_squares(port, curvature, parts).flatten(0, 1)
        found = port.vector.flatten(0, 1).square().T @ squares / self._head.scale**2
        of_inputs = self._tangent.input_curvature(name) if parts.t_functional and port.turn is not None else None
        if of_inputs is not None:
            found += port.vector.flatten(0, 1).square().T @ of_inputs.diagonal(dim1=-2, dim2=-1).flatten(0, 1)
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
        if port.readout is None:
            return like.flatten(0, 1).square().T @ curvature.diagonals(self._loss.gradient).flatten(0, 1)
        step = max(1, _WORKSPACE_BYTES // (like.shape[0] * R.numel() * R.element_size()))
        for start in range(0, like.shape[1], step):
            some = like[:, start : start + step]
            each = R.T.expand(*some.shape[:2], -1, -1)
            squares = (curvature.at(slice(start, start + step)).times(each) * each).sum(-2)
            found += some.flatten(0, 1).square().T @ squares.flatten(0, 1)
        return found

    def _score_squares(self, port: ScorePort, curvature: UncoupledCurvature, parts: Summands) -> Tensor:
        """``(P' M_i P)_bb``, ``[s, i, b]``."""
        V, P = self._head.values, port.matrix
        found = P.new_zeros(*self._head.weights.shape[:2], port.matrix_width)
        if not self._in_columns(port):
            return self._add_by_token(found, port, curvature, parts)
        if parts.functional:
            found += self._functional_squares(P)
        if parts.outer and isinstance(curvature, ScalarCurvature) and V.shape[1] < V.shape[2]:
            return self._add_by_token(found, port, curvature, Summands(True, False, False))
        if parts.outer:
            found += self._outer_squares(P, curvature)
        return found

    # --- from columns ------------------------------------------------------------------------------------------------

    def _in_columns(self, port: ScorePort) -> bool:
        return port.turn is None and self._jacobian is not None and self._curvature is not None

    @cached_property
    def _jacobian(self) -> RowColumns | None:
        return self._tangent.rows.jacobian_columns()

    @cached_property
    def _curvature(self) -> RowColumns | None:
        return self._tangent.rows.curvature_columns()

    def _sum(self, column: Tensor, rows: Tensor) -> Tensor:
        """``[s, i, .]``, what key tokens' rows sum up to with the weights of a column; found once, keys from tokens."""
        key, (keys, weight) = (id(column), id(rows)), self._keys
        if key not in self._sums:  # with both tensors, so that their numbers are not given to others
            found = column @ rows if rows is not keys else self._sum(column, self._head.tokens) @ weight
            self._sums[key] = found, column, rows
        return self._sums[key][0]

    @cached_property
    def _keys(self) -> tuple[Tensor | None, Tensor]:
        """K, if it is tokens times a weight and those tokens' sums are asked for anyway; and that weight."""
        head = self._head
        if self._tangent.merged is None or head.score_pair is None:
            return None, head.tokens
        port = head.score_ports[head.score_pair[0]]
        return (None, head.tokens) if port.other is None else (port.matrix, port.other)

    def _functional_squares(self, P: Tensor) -> Tensor:
        """``(P' D_i P)_bb``."""
        D = self._curvature
        assert D is not None
        found = P.new_zeros(*self._head.weights.shape[:2], P.shape[2])
        if D.diagonal is not None:
            found += D.diagonal @ P.square()
        for number, left, right in D.pairs:
            found.addcmul_(self._sum(left, P), self._sum(right, P), value=number)
        return found

    def _functional_traces(self, P: Tensor) -> Tensor:
        """``tr(P' D_i P)``, ``[s, i]``."""
        D = self._curvature
        assert D is not None
        found = P.new_zeros(self._head.weights.shape[:2])
        if D.diagonal is not None:
            found += (D.diagonal @ P.square().sum(-1)[..., None])[..., 0]
        for number, left, right in D.pairs:
            found.add_(vecdot(self._sum(left, P), self._sum(right, P)), alpha=number)
        return found

    def _outer_squares(self, P: Tensor, curvature: UncoupledCurvature) -> Tensor:
        """``(P' J_i' V C_i V' J_i P)_bb``, some columns of P at a time."""
        J, V = self._jacobian, self._head.values
        assert J is not None
        (sequences, rows, length), width = self._head.weights.shape, V.shape[2]
        found = P.new_empty(sequences, rows, P.shape[2])
        step = max(1, _WORKSPACE_BYTES // (sequences * max(rows, length) * width * V.element_size()))
        for start in range(0, P.shape[2], step):
            at = slice(start, start + step)
            some = P[..., at]
            shape = (sequences, rows, some.shape[2], width)
            if J.diagonal is None:
                S = V.new_zeros(shape)
            else:
                S = (J.diagonal @ (some[..., None] * V[:, :, None]).flatten(2)).view(shape)
            for number, left, right in J.pairs:
                S.addcmul_(self._sum(left, V)[:, :, None], self._sum(right, P)[..., at, None], value=number)
            found[..., at] = _curvature_squares(S, curvature)
        return found

    def _outer_traces(self, P: Tensor) -> Tensor:
        """``tr(P' J_i' W J_i P)`` for every token."""
        J, V = self._jacobian, self._head.values
        assert J is not None
        total = P.new_zeros(self._head.weights.shape[:2])
        if J.diagonal is not None:
            total += _gram_squares(J.diagonal, V, P)
            for (number, _, right), spread in zip(J.pairs, self._spread, strict=True):
                total.add_(vecdot(spread @ P, self._sum(right, P)), alpha=2 * number)
        met = [(number, self._sum(left, V), self._sum(right, P)) for number, left, right in J.pairs]
        for one, values, matrices in met:
            for two, others, more in met:
                total.addcmul_(vecdot(values, others), vecdot(matrices, more), value=one * two)
        return total

    @cached_property
    def _spread(self) -> list[Tensor]:
        """``b o W l`` for every column l of J."""
        J, V = self._jacobian, self._head.values
        assert J is not None
        assert J.diagonal is not None
        return [(self._sum(left, V) @ V.mT).mul_(J.diagonal) for _, left, _ in J.pairs]

    # --- from rows, some tokens at a time ----------------------------------------------------------------------------

    @cached_property
    def _row_curvature(self) -> RowMatrices:
        return self._head.curvature(self._loss.gradient)

    @cached_property
    def _gram(self) -> Tensor:
        return self._head.values @ self._head.values.mT

    def _add_by_token(self, found: Tensor, port: ScorePort, curvature: UncoupledCurvature, parts: Summands) -> Tensor:
        """The same where matrices turn with the query token or J is dense, from ``J_i P`` and ``D_i P``."""
        J, V = self._head.jacobian, self._head.values
        width = J.shape[0] * J.shape[2] * max(V.shape[2], found.shape[2]) * V.element_size()
        step = max(1, _WORKSPACE_BYTES // width)
        for start in range(0, J.shape[1], step):
            stop = min(start + step, J.shape[1])
            P = port.matrices_at(start, stop)
            if parts.outer:
                some = curvature.at(slice(start, stop))
                found[:, start:stop] += self._outer_at(J.tokens(start, stop).apply(P), some)
            if parts.functional:
                found[:, start:stop] += (self._row_curvature.tokens(start, stop).apply(P) * P).sum(2)
        return found

    def _outer_at(self, JP: Tensor, curvature: UncoupledCurvature) -> Tensor:
        """``(P' J_i' V C_i V' J_i P)_bb``, with ``V V'`` where sequences are shorter than values are wide."""
        V = self._head.values
        if isinstance(curvature, ScalarCurvature) and V.shape[1] < V.shape[2]:
            return curvature.values[..., None] * (JP * (self._gram[:, None] @ JP)).sum(2)
        return _curvature_squares((V.mT[:, None] @ JP).mT, curvature)


def _curvature_squares(S: Tensor, curvature: UncoupledCurvature) -> Tensor:
    """``S_ib' C_i S_ib`` of rows ``[s, i, b, f]``."""
    if isinstance(curvature, ScalarCurvature):
        return vecdot(S, S) * curvature.values[..., None]
    return (curvature.times(S.mT) * S.mT).sum(-2)


def _gram_squares(b: Tensor, V: Tensor, P: Tensor) -> Tensor:
    """``b_i' (V V' o P P') b_i``; of a symmetric matrix the half on and above the blocks of the diagonal."""
    total = b.new_zeros(b.shape[:2])
    for start in range(0, V.shape[1], _BLOCK):
        stop = min(start + _BLOCK, V.shape[1])
        both = (V[:, start:stop] @ V[:, start:].mT).mul_(P[:, start:stop] @ P[:, start:].mT)
        both[..., stop - start :] *= 2
        total += vecdot(b[..., start:stop] @ both, b[..., start:])
    return total


_PAIRS_BYTES = 2**25
"""Of the products of all entries of values and tokens, in a sequence."""
_PAIRED_WORKSPACE_BYTES = 2**20
"""Of what is formed of some tokens at a time: so little that memory which is there already will do."""


def fits(head: HeadState) -> bool:
    """Whether a head is small enough: wider ones go some columns at a time."""
    length, width = head.tokens.shape[1:]
    return length * width * head.values.shape[2] * head.values.element_size() <= _PAIRS_BYTES


def outer_traces(
    head: HeadState,
    jacobian: RowColumns,
    curvature: UncoupledCurvature,
    other: Tensor,
    total: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Those of the queries' and of the keys' small matrices, ``[s, i]`` each.

    Args:
        head: The head, centred.
        jacobian: ``J_i``.
        curvature: Of the loss.
        other: ``W_K``.
        total: Sums of rows with the weights of a column, ``column @ rows``.
    """
    X, V, merged = head.tokens, head.values, other @ other.T
    (sequences, rows, length), shape = head.weights.shape, (V.shape[2], X.shape[2])
    met = [(number, total(left, V), total(right, X)) for number, left, right in jacobian.pairs]
    step = min(rows, max(1, _PAIRED_WORKSPACE_BYTES // (V.shape[2] * X.shape[2] * V.element_size())))
    queries, keys = V.new_empty(sequences, rows), V.new_empty(sequences, rows)
    pairs, formed = V.new_empty(length, *shape), V.new_empty(step, *shape)
    for s in range(sequences):
        torch.mul(V[s, :, :, None], X[s, :, None], out=pairs)
        own = curvature.of_sequences(s, s + 1)
        for start in range(0, rows, step):
            at = slice(start, min(start + step, rows))
            S = formed[: at.stop - start]
            if jacobian.diagonal is None:
                S.zero_()
            else:
                torch.mm(jacobian.diagonal[s, at], pairs.flatten(1), out=S.flatten(1))
            for number, values, tokens in met:
                S.addcmul_(values[s, at, :, None], tokens[s, at, None], value=number)
            hvp = own.at(at).times(S[None])[0].flatten(1)
            keys[s, at] = vecdot(hvp, S.flatten(1))
            queries[s, at] = vecdot(hvp, (S @ merged).flatten(1))
    return queries, keys
