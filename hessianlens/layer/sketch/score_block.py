"""Blocks between two parameters that enter through the scores: ``G_n = P^T M_n P' / (s s')``."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.state import ScorePort
from hessianlens.layer.sketch.score_matrices import ScoreMatrices
from hessianlens.layer.sketch.unfolding import RANK, Points, TokenPairs, Unfolding
from hessianlens.operators.exponent_scaling import scale_to_unit_maximum

_WORKSPACE_BYTES = 2**25
"""Room for random matrices between the tokens of a sequence."""


class ScoreBlock(Unfolding):
    """``sum_n u_n v_n^T (x) P^T M_n P' / (s s')`` plus, for queries and keys, ``B (x) I``.

    Args:
        matrices: M of the two heads.
        row: How the parameter of the rows enters.
        column: How that of the columns does.
        pair: B, if the T-functional summand is asked for and there is one.
    """

    def __init__(self, matrices: ScoreMatrices, row: ScorePort, column: ScorePort, pair: Tensor | None = None) -> None:
        self._M, self._B = matrices, pair
        self.left, self.right = row.matrix.shape[-1], column.matrix.shape[-1]
        (self._P, p), (self._R, r) = scale_to_unit_maximum(row.matrix), scale_to_unit_maximum(column.matrix)
        u, a = scale_to_unit_maximum(row.vector.flatten(0, 1))
        v, b = (u, a) if column.vector is row.vector else scale_to_unit_maximum(column.vector.flatten(0, 1))
        self._pairs = TokenPairs(u, v)
        self.unit = p * r * a * b / (matrices.row.scale * matrices.column.scale)

    def responses(self, left: Tensor, right: Tensor) -> Points:
        """``<M_n, P Omega P'^T>`` of every token, one product per sequence."""
        sequences, queries, length = self._M.row.scores.shape
        weights = left.new_zeros(len(left), sequences, queries, dtype=torch.float64)
        if self._M.vanish:
            return self._pairs.points(weights.flatten(1))
        seen = [_seen(side, rows) for side, rows in ((left, self._P), (right, self._R))]  # [k, r, s, l]
        step = max(1, _WORKSPACE_BYTES // (length * length * left.element_size()))
        for s in range(sequences):
            for start in range(0, len(left), step):
                some = slice(start, start + step)
                Z = (seen[0][some, :, s].mT @ seen[1][some, :, s]).flatten(1)
                for first, last, M in self._M.of_sequence(s):
                    weights[some, s, first:last] = (Z @ M.flatten(1).T).double()
        return self._pairs.points(weights.flatten(1))

    def mean(self) -> Points:
        """All tokens alike."""
        return self._pairs.points(torch.ones(1, len(self._pairs.u), dtype=torch.float64, device=self._P.device))

    def small(self, directions: Points) -> Tensor:
        """``P^T (sum_n phi_n M_n) P'``."""
        sequences, queries, length = self._M.row.scores.shape
        along = self._pairs.along(directions).to(self._P).view(-1, sequences, queries)
        total = self._P.new_zeros(self.left, len(along) * self.right)
        for s in range(sequences if not self._M.vanish else 0):
            summed = total.new_zeros(len(along), length * length)
            for first, last, M in self._M.of_sequence(s):
                summed.addmm_(along[:, s, first:last], M.flatten(1))
            half = (summed.view(-1, length) @ self._R[s]).view(-1, length, self.right)
            total.addmm_(self._P[s].T, half.transpose(0, 1).flatten(1))
        return total.view(self.left, -1, self.right).transpose(0, 1).double()

    @cached_property
    def constant(self) -> float:
        """``2 <sum_n, B (x) I> + |B|^2 tr I``, over the squared unit."""
        if self._B is None:
            return 0.0
        inner = 0.0 if self._M.vanish else self._inner()
        return 2 * inner + float((self._B / self.unit).double().square().sum()) * self.left

    def _inner(self) -> float:
        """``sum_n (P q_n)^T M_n (P' B^T x_n)``: what the sum over tokens and ``B (x) I`` have in common."""
        assert self._B is not None
        B, total = (self._B / self.unit).to(self._P), 0.0
        sequences, queries, _ = self._M.row.scores.shape
        u, v = (side.view(sequences, queries, -1) for side in (self._pairs.u, self._pairs.v))
        for s in range(sequences):
            left, right = v[s] @ self._P[s].T, u[s] @ B @ self._R[s].T
            for first, last, M in self._M.of_sequence(s):
                product = (M @ right[first:last, :, None])[..., 0]
                total += float((left[first:last] * product).double().sum())
        return total

    @property
    def set_up_cost(self) -> float:
        """The matrices and the Gram matrix of tokens."""
        return self._M.multiply_adds + self._pairs.set_up_cost + (0.0 if self._B is None else self._M.entries)

    @property
    def probe_cost(self) -> float:
        """Random matrices between tokens, and their products with M."""
        sequences, _, length = self._M.row.scores.shape
        thin = sequences * length * RANK * (self.left + self.right + length)
        return thin + self._M.entries + self._pairs.point_cost

    @property
    def direction_cost(self) -> float:
        """A sum of M and what stands beside it."""
        sequences, _, length = self._M.row.scores.shape
        return self._M.entries + sequences * length * self.right * (length + self.left) + self._pairs.point_cost


def _seen(side: Tensor, rows: Tensor) -> Tensor:
    """What random vectors ``[k, r, .]`` make of every token, ``[k, r, s, l]``, in one product."""
    return (side.flatten(0, 1) @ rows.flatten(0, 1).T).view(*side.shape[:2], *rows.shape[:2])
