"""Entries of a small layer's blocks, in few and large tensor operations that write them where they belong.

At small sizes a call costs more than what it computes, and a copy of a block as much as the block. With the small
matrices of `HeadEntries` and the vectors p (x, q) and m of the parameters, the blocks are

    score, score  sum_i p_i p_i' (x) G_i
    score, value  sum_i p_i (x) (S_i' C_i (x) m_i + Phi_i' (x) g_i)
    value, value  sum_i m_i m_i' (x) C_i

Each is one matrix product of vectors, or pairs of them, with what is left, whose last axis is that of the matrix; what
lies below the diagonal is a mirror image.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from hessianlens.attention.state import ValuePort
from hessianlens.layer.dense_head import HeadEntries
from hessianlens.layer.head_tangent import HeadTangent, Summands
from hessianlens.losses import LossDerivatives, ScalarCurvature, UncoupledCurvature
from hessianlens.operators.dense_block import write_transposed

_WORKSPACE_BYTES = 2**23
"""Of what is kept of all tokens at once; beyond, blocks are formed from their closed forms."""
_CHUNK_BYTES = 2**20
"""Of what is formed of some tokens at a time."""

Place = tuple[int, str]


class LayerEntries:
    """Entries of the blocks of a layer.

    Args:
        heads: Its heads.
        loss: Gradient and curvature of the loss.
    """

    def __init__(self, heads: Sequence[HeadTangent], loss: LossDerivatives) -> None:
        self._heads, self._loss = [HeadEntries(head, loss) for head in heads], loss

    @cached_property
    def _fit(self) -> bool:
        uncoupled = isinstance(self._loss.curvature, UncoupledCurvature)
        return uncoupled and all(head.fits(_WORKSPACE_BYTES) for head in self._heads)

    def write(self, rows: Sequence[Place], columns: Sequence[Place], parts: Summands, target: Tensor) -> bool:
        """The matrix of some rows and columns of blocks, unless it takes their closed forms."""
        if not self._fit:
            return False
        shapes, more_shapes = ([self._shape(place) for place in places] for places in (rows, columns))
        widths = [a * b for a, b in more_shapes]
        cells: dict[tuple[Place, Place], Tensor] = {}
        later: list[tuple[Place, Place]] = []
        for row, shape, line in zip(rows, shapes, target.split([a * b for a, b in shapes]), strict=True):
            for column, other, cell in zip(columns, more_shapes, line.split(widths, 1), strict=True):
                cells[row, column] = cell
                if self._mirrors(row, column, rows, columns):
                    later.append((row, column))
                else:
                    self._write(row, column, parts, cell.view(*shape, *other))
        for row, column in later:
            write_transposed(cells[column, row], cells[row, column])
        return True

    def _mirrors(self, row: Place, column: Place, rows: Sequence[Place], columns: Sequence[Place]) -> bool:
        """Whether a block is the transpose of one that is written anyway: rows of scores go first."""
        if row == column or row not in columns or column not in rows:
            return False
        scores, more_scores = self._is_score(row), self._is_score(column)
        return more_scores if scores != more_scores else rows.index(column) < rows.index(row)

    def _is_score(self, place: Place) -> bool:
        return place[1] in self._heads[place[0]].head.score_ports

    def _shape(self, place: Place) -> tuple[int, int]:
        head, name = self._heads[place[0]].head, place[1]
        if name in head.value_ports:
            return head.value_ports[name].content.shape[2], head.value_ports[name].width
        port = head.score_ports[name]
        own, other = port.vector.shape[2], port.matrix.shape[2]
        return (own, other) if port.vector_axis == 0 else (other, own)

    def _write(self, row: Place, column: Place, parts: Summands, entries: Tensor) -> None:
        """One block, ``[a, b, c, d]``."""
        scores, more_scores = self._is_score(row), self._is_score(column)
        meet = parts.outer or (parts.functional and row[0] == column[0])
        if scores and more_scores:
            if meet:
                self._write_scores(row, column, parts, entries)
            else:
                entries.zero_()
            self._add_score_pair(row, column, parts, entries)
        elif not (scores or more_scores):
            self._write_values(row, column, parts, entries)
        elif not meet:
            entries.zero_()
        elif scores:
            self._write_score_value(row, column, parts, entries)
        else:
            turned = entries.new_empty(*entries.shape[2:], *entries.shape[:2])
            self._write_score_value(column, row, parts, turned)
            entries.copy_(turned.permute(2, 3, 0, 1))

    def _write_scores(self, row: Place, column: Place, parts: Summands, entries: Tensor) -> None:
        """``sum_n vector[n, x] vector[n, y] G[n, p, q]``; products whose last axis is that of the entries."""
        one, two = self._heads[row[0]], self._heads[column[0]]
        ports = one.head.score_ports[row[1]], two.head.score_ports[column[1]]
        left, right = one.vectors[row[1]], two.vectors[column[1]]
        both = left[:, :, None] * right[:, None]
        G = one.between(two, parts)[:, one.columns(row[1]), two.columns(column[1])]
        first, second = (both, G) if ports[1].vector_axis == 0 else (G, both)
        found = (first.flatten(1).T @ second.flatten(1)).view(*first.shape[1:], *second.shape[1:])
        own_first = (ports[0].vector_axis == 0) == (first is both)
        entries.copy_(found.permute(0, 2, 1, 3) if own_first else found.permute(2, 0, 1, 3))

    def _write_score_value(self, score: Place, value: Place, parts: Summands, entries: Tensor) -> None:
        """``sum_n vector[n, a] rest[n, p, c, d]``, for some tokens at a time: at least half as many as rows a."""
        head = self._heads[score[0]]
        products, vector = self._rest(score, value, parts), head.vectors[score[1]]
        tokens, width = vector.shape
        numbers = entries.numel() // width
        some = min(tokens, max(1, _CHUNK_BYTES // (numbers * entries.element_size()), width // 2))
        shape, found = (numbers // prod(entries.shape[2:]), *entries.shape[2:]), entries.new_empty(width, numbers)
        formed = entries.new_empty(some, *shape)
        for n in range(0, tokens, some):
            left = vector[n : n + some].T
            rest = _outer(products, slice(n, n + some), formed[: left.shape[1]])
            found.addmm_(left, rest.view(-1, numbers), beta=int(n > 0))
        by_row = found.view(width, *shape)
        entries.copy_(by_row if head.head.score_ports[score[1]].vector_axis == 0 else by_row.transpose(0, 1))

    def _rest(self, score: Place, value: Place, parts: Summands) -> list[list[Tensor]]:
        """What meets the vectors of a score parameter, as outer products of ``[n, p, c]`` and ``[n, p, d]``."""
        own, other = self._heads[score[0]], self._heads[value[0]]
        at, downstream = own.columns(score[1]), other.head.value_ports[value[1]]
        found = []
        if parts.outer:
            found.append([downstream.vector.flatten(0, 1)[:, None], own.curved(downstream.readout)[:, at]])
        if parts.functional and own is other:
            g = own.gradient if downstream.readout is None else own.gradient @ downstream.readout.T
            found.append([own.functional_response(value[1])[:, at], g[:, None]])
        return found

    def _write_values(self, row: Place, column: Place, parts: Summands, entries: Tensor) -> None:
        one, two = self._heads[row[0]].head, self._heads[column[0]].head
        curvature = self._loss.curvature
        assert isinstance(curvature, UncoupledCurvature)
        ports = one.value_ports[row[1]], two.value_ports[column[1]]
        write_values(*ports, curvature if parts.outer else None, entries)
        if parts.functional and one is two and one.value_pair is not None and row != column:
            first = one.value_pair[0]
            add_value_pair(one.value_ports[first], self._loss.gradient, entries, first == row[1])

    def _add_score_pair(self, row: Place, column: Place, parts: Summands, entries: Tensor) -> None:
        """The T-functional summand, if the two parameters are the factors of a head's scores."""
        own, names = self._heads[row[0]], (row[1], column[1])
        if parts.t_functional and row[0] == column[0] and own.head.score_pair in (names, names[::-1]):
            B = own.tangent.score_pair_gradient
            B = B if own.head.score_pair == names else B.T
            torch.diagonal(entries, dim1=1, dim2=3).add_(B[..., None])


def _outer(products: Sequence[Sequence[Tensor]], at: slice, target: Tensor) -> Tensor:
    """``target[n, p, c, d]``, the sum of outer products of ``[n, p, c]`` and ``[n, p, d]`` for some tokens n."""
    for k, (left, right) in enumerate(products):
        if k == 0:
            torch.mul(left[at, :, :, None], right[at, :, None], out=target)
        else:
            target.addcmul_(left[at, :, :, None], right[at, :, None])
    return target


def write_values(row: ValuePort, column: ValuePort, curvature: UncoupledCurvature | None, entries: Tensor) -> None:
    """The outer part of a block, zero without a curvature.

    Args:
        row: How the parameter of the rows enters.
        column: The same for the columns.
        curvature: Of the loss.
        entries: Is overwritten, ``[a, b, c, d]``.
    """
    left, right = (port.vector.flatten(0, 1) for port in (row, column))
    if curvature is None:
        entries.zero_()
    elif not isinstance(curvature, ScalarCurvature):
        R, Q = (_readout(port, left).expand(row.vector.shape[0], -1, -1) for port in (row, column))
        C, both = curvature.between(R, Q).flatten(0, 1), left[:, :, None] * right[:, None]
        entries.copy_((both.flatten(1).T @ C.flatten(1)).view(*both.shape[1:], *C.shape[1:]).transpose(1, 2))
    else:
        gram = left.T @ (right * curvature.values.reshape(-1, 1))
        if row.readout is None and column.readout is None:
            entries.zero_()
            torch.diagonal(entries, dim1=1, dim2=3).copy_(gram[..., None].expand(-1, -1, row.width))
        else:
            between = _readout(row, left) @ _readout(column, left).T
            torch.mul(gram[:, None, :, None], between[None, :, None, :], out=entries)


def _readout(port: ValuePort, like: Tensor) -> Tensor:
    """The matrix behind a parameter, ``[., f]``."""
    return torch.eye(port.width, dtype=like.dtype, device=like.device) if port.readout is None else port.readout


def add_value_pair(first: ValuePort, gradient: Tensor, entries: Tensor, in_order: bool) -> None:
    """The functional part between the two factors of a head's values, ``B (x) 1`` with ``B = M_1' g``.

    Args:
        first: How the first of them enters.
        gradient: Of the loss.
        entries: Is added to, ``[a, b, c, d]``.
        in_order: Whether the first one indexes the rows.
    """
    B = first.vector.flatten(0, 1).T @ gradient.flatten(0, 1)
    if in_order:
        torch.diagonal(entries, dim1=1, dim2=2).add_(B[..., None])
    else:
        torch.diagonal(entries, dim1=0, dim2=3).add_(B.T[..., None])
