"""The score-space Hessian ``M_i`` of every token, a few tokens at a time.

Where ``C_i = c_i I`` and row derivatives are diagonal plus low rank, ``J_i = diag(b) + l r^T``, with ``W = V V'^T``:

    J^T W J' = (b b'^T) o W + r (b' o W^T l)^T + (b o W l' + r (l^T W l')) r'^T

(primes: of the column's head), which is elementwise work and one thin product per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState
from hessianlens.layer.head_tangent import Summands
from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature

_CHUNK_BYTES = 2**20
"""Room for the matrices that are made at a time."""
_KEPT_BYTES = 2**26
"""Room up to which the matrices of all tokens are kept."""


class ScoreMatrices:
    """``M_i`` between the scores of two heads, under a loss that couples no two tokens.

    Args:
        row: Head of the rows.
        column: Head of the columns; of another head than `row` there is the outer part only.
        loss: Gradient and curvature of the loss.
        parts: Which summands; the T-functional one is none of them.
    """

    def __init__(self, row: HeadState, column: HeadState, loss: LossDerivatives, parts: Summands) -> None:
        assert isinstance(loss.curvature, UncoupledCurvature)
        self.row, self.column = row, column
        self._gradient, self._curvature, self._parts = loss.gradient, loss.curvature, parts
        self._kept: dict[int, Tensor] = {}
        sequences, queries, length = row.scores.shape
        self.entries = sequences * queries * length * length

    @property
    def vanish(self) -> bool:
        """Whether there is none of the summands."""
        return not self._parts.outer and not self._functional

    @property
    def _functional(self) -> bool:
        return self._parts.functional and self.row is self.column

    @property
    def multiply_adds(self) -> float:
        """What it takes to make all of them."""
        thin, features = 8.0, self.row.values.shape[-1]
        if self._parts.outer and not isinstance(self._curvature, ScalarCurvature):
            return self.entries * (thin + features * (1 + features / self.row.scores.shape[-1]))
        return self.entries * thin

    def of_sequence(self, s: int) -> Iterator[tuple[int, int, Tensor]]:
        """Ranges of the query tokens of a sequence, and their matrices ``[i, l, m]``."""
        _, queries, length = self.row.scores.shape
        if s in self._kept:
            yield 0, queries, self._kept[s]
            return
        size = self.row.scores.element_size()
        step = max(1, _CHUNK_BYTES // (length * length * size))
        if self.entries * size <= _KEPT_BYTES:
            kept = self.row.scores.new_empty(queries, length, length)
            for start in range(0, queries, step):
                kept[start : start + step] = self._some(s, start, min(start + step, queries))
            self._kept[s] = kept
            yield 0, queries, kept
            return
        for start in range(0, queries, step):
            stop = min(start + step, queries)
            yield start, stop, self._some(s, start, stop)

    def _some(self, s: int, start: int, stop: int) -> Tensor:
        """``[i, l, m]``."""
        length = self.row.scores.shape[-1]
        total = self._outer(s, start, stop) if self._parts.outer else None
        if self._functional:
            D = _cut(self._activation_curvature, s, start, stop)
            total = self.row.scores.new_zeros(stop - start, length, length) if total is None else total
            _add(total, D)
        assert total is not None
        return total

    @cached_property
    def _activation_curvature(self) -> RowMatrices:
        return self.row.curvature(self._gradient)

    @cached_property
    def _gram(self) -> Tensor:
        return self.row.values @ self.column.values.mT

    def _outer(self, s: int, start: int, stop: int) -> Tensor:
        J, K = (_cut(head.jacobian, s, start, stop) for head in (self.row, self.column))
        curvature = self._curvature.at(slice(start, stop))
        plain = all(rows.dense is None and rows.diagonal is not None for rows in (J, K))
        if isinstance(curvature, ScalarCurvature) and plain:
            return _thin(J, K, self._gram[s], curvature.values[s])
        V, U = self.row.values[s : s + 1], self.column.values[s : s + 1]
        half = J.transpose().apply(curvature.of_sequences(s, s + 1).between(V, U))
        return K.transpose().apply(half.mT)[0].mT.contiguous()


def _thin(J: RowMatrices, K: RowMatrices, W: Tensor, numbers: Tensor) -> Tensor:
    """``c_i J' W K`` for rows that are diagonal plus low rank."""
    assert J.diagonal is not None and K.diagonal is not None
    b, d = J.diagonal[0] * numbers[:, None], K.diagonal[0]
    total = b[:, :, None] * d[:, None, :]
    total *= W
    left, right = [], []
    if J.left is not None and J.right is not None:
        left.append(J.right[0] * numbers[:, None, None])
        right.append(d[..., None] * _transposed_times(J.left[0], W))
    if K.left is not None and K.right is not None:
        projected = _transposed_times(K.left[0], W.T)
        left.append(b[..., None] * projected)
        right.append(K.right[0])
        if J.left is not None:
            left[-1] = left[-1] + left[0] @ (J.left[0].mT @ projected)
    if left:
        total.baddbmm_(torch.cat(left, -1), torch.cat(right, -1).mT)
    return total


def _transposed_times(columns: Tensor, W: Tensor) -> Tensor:
    """``W^T l`` of every token and column, one matvec per column."""
    return torch.stack([column @ W for column in columns.unbind(-1)], -1)


def _add(total: Tensor, rows: RowMatrices) -> None:
    if rows.diagonal is not None:
        torch.diagonal(total, dim1=-2, dim2=-1).add_(rows.diagonal[0])
    if rows.left is not None and rows.right is not None:
        total.baddbmm_(rows.left[0], rows.right[0].mT)
    if rows.dense is not None:
        total.add_(rows.dense[0])


def _cut(rows: RowMatrices, s: int, start: int, stop: int) -> RowMatrices:
    """The matrices of some tokens of one sequence."""
    parts = (
        None if p is None else p[s : s + 1, start:stop] for p in (rows.diagonal, rows.left, rows.right, rows.dense)
    )
    return RowMatrices((1, stop - start, rows.shape[2]), *parts)
