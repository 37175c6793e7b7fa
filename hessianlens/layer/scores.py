"""Second derivatives of the loss with respect to the scores, and the blocks they carry.

For uncoupled tokens everything that two score parameters share is one small symmetric matrix a query token,

    M_i = d^2 l / dT_i dT_i = J_i^T V C_i V^T J_i  +  D_i(w_i)        (outer-product part + functional part),

and each block is ``sum_i  vector_i vector'_i^T (x) P^T M_i P' / (s s')`` with the vector and the matrix P of each
parameter: (x, K) for W_Q, (q, X) for W_K, (x, X) for a single query-key matrix. With rotary positions or norms they
are ``(x_i, R_i^T k_l)`` and ``(R_l^T q_i, x_l)``, R from what the weight puts out to the query or key: a vector that
depends on both tokens stays beside M. M may leave the range of the numbers where the block does not: powers of two are
then taken out of what it is made of, and given back to all factors of the term.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, einsum

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState, ScorePort
from hessianlens.layer.expansion import (
    COLUMN_LETTERS_UNCOUPLED,
    ROW_LETTERS,
    matrix_factor,
    row_terms,
    sandwich_terms,
    vector_factor,
)
from hessianlens.losses import LowRankTokenCurvature, ScalarCurvature, UncoupledCurvature
from hessianlens.operators import Factor, Term
from hessianlens.operators.exponent_scaling import (
    exponents_to_factor_out,
    ldexp,
    scale_term,
    size_exponent,
    size_exponents,
)

_CHUNK_BYTES = 4 * 2**20
"""Of what is formed of some tokens at a time, however large the result is."""


class _Exponents(NamedTuple):
    """Powers of two taken out of what M is made of: it may not fit where the block does, beside small P."""

    row_jacobian: int
    column_jacobian: int
    row_values: int
    column_values: int
    gradient: int

    @property
    def outer(self) -> int:
        """Of all that the outer-product part is made of."""
        return self.row_jacobian + self.column_jacobian + self.row_values + self.column_values


@dataclass(frozen=True, eq=False)
class ScoreCurvature:
    """The score-space Hessian M of a pair of heads under a loss that couples no two tokens.

    Attributes:
        row: Head of the row parameter.
        column: Head of the column parameter; another head than `row` has an outer-product part only.
        curvature: ``C_i`` of the loss.
        gradient: ``g`` of the loss.
    """

    row: HeadState
    column: HeadState
    curvature: UncoupledCurvature
    gradient: Tensor

    @cached_property
    def _exponents(self) -> _Exponents:
        heads = (self.row, self.column)
        values = size_exponents([*(head.values for head in heads), self.gradient])
        sizes = [*(head.jacobian.size_exponent() for head in heads), *values]
        return _Exponents(*exponents_to_factor_out(sizes, self.gradient.dtype))

    @cached_property
    def _activation_curvature(self) -> tuple[RowMatrices, int]:
        """``D_i(w_i)``, and the power of two that was taken out of it."""
        out = self._exponents.row_values + self._exponents.gradient
        found = self.row.curvature(ldexp(self.gradient, -out))
        more = found.size_exponent() if any(self._exponents) else 0
        return found.ldexp(-more), out + more

    @cached_property
    def outer_matrices(self) -> Tensor:
        """``J_i^T V C_i V^T J_i`` for every token."""
        return ldexp(self._outer, self._exponents.outer)

    @cached_property
    def _outer(self) -> Tensor:
        """The same without the power of two that was taken out of it."""
        return self._outer_rows(0, self.row.queries.shape[1])

    def _outer_rows(self, start: int, stop: int) -> Tensor:
        inner = self._between(start, stop)
        half = self._jacobian(self.row).tokens(start, stop).transpose().apply(inner)
        other = self._jacobian(self.column).tokens(start, stop).transpose()
        return other.apply(half.transpose(-1, -2)).transpose(-1, -2)

    def _jacobian(self, head: HeadState) -> RowMatrices:
        out = self._exponents.row_jacobian if head is self.row else self._exponents.column_jacobian
        return head.jacobian.ldexp(-out)

    def _values(self, head: HeadState) -> Tensor:
        return ldexp(head.values, -(self._exponents.row_values if head is self.row else self._exponents.column_values))

    @cached_property
    def _gram(self) -> Tensor:
        """``V V'^T``, the same for every token."""
        return self._values(self.row) @ self._values(self.column).transpose(-1, -2)

    def _between(self, start: int, stop: int) -> Tensor:
        """``V C_i V'^T`` of a range of tokens."""
        curvature = self.curvature.at(slice(start, stop))
        if isinstance(curvature, ScalarCurvature):
            return curvature.values[..., None, None] * self._gram[:, None]
        return curvature.between(self._values(self.row), self._values(self.column))

    def _is_full(self, part: str) -> bool:
        """Whether there is a functional part beside the outer one."""
        return part == "full" and self.row is self.column

    def _exponent(self, part: str) -> int:
        """The power of two that was taken out of M."""
        outer = self._exponents.outer
        return max(outer, self._activation_curvature[1]) if self._is_full(part) else outer

    def _rows(self, part: str, start: int, stop: int) -> Tensor:
        """M of a range of tokens; of all tokens at once, it is remembered for the other blocks."""
        if stop - start == self.row.queries.shape[1]:
            return self._full if self._is_full(part) else self._outer
        outer = self._outer_rows(start, stop)
        return self._sum(outer, start, stop) if self._is_full(part) else outer

    @cached_property
    def _full(self) -> Tensor:
        """``M_i`` for every token, without the power of two that was taken out of it."""
        return self._sum(self._outer, 0, self.row.queries.shape[1])

    def _sum(self, outer: Tensor, start: int, stop: int) -> Tensor:
        rows, out = self._activation_curvature
        total = self._exponent("full")
        return _add(ldexp(outer, self._exponents.outer - total), rows.tokens(start, stop).ldexp(out - total))

    def terms(self, row: ScorePort, column: ScorePort, part: str) -> list[Term]:
        """The block between two score parameters; `part` is "outer", "functional" or "full".

        The T-functional summand of the query-key block is not included.
        """
        if part == "functional":
            return self._functional_terms(row, column)
        if _by_pair(row, column):
            return self._score_form(row, column, part)
        widths = row.matrix_width, column.matrix_width
        length = self.row.tokens.shape[1]
        cheapest = min(length * length, widths[0] * widths[1])
        if isinstance(self.curvature, LowRankTokenCurvature) and self.curvature.root.shape[-1] * sum(widths) < cheapest:
            outer = self._low_rank_terms(row, column, self.curvature)
            return outer + (self._functional_terms(row, column) if part == "full" else [])
        if length * length <= widths[0] * widths[1]:
            return self._score_form(row, column, part)
        return self._parameter_form(row, column, part)

    def _vectors(self, row: ScorePort, column: ScorePort) -> tuple[Factor, Factor]:
        return vector_factor(row, ROW_LETTERS), vector_factor(column, COLUMN_LETTERS_UNCOUPLED)

    @property
    def _scale(self) -> float:
        return 1 / (self.row.scale * self.column.scale)

    def _score_form(self, row: ScorePort, column: ScorePort, part: str) -> list[Term]:
        """M itself beside the two matrices: small when the sequence is shorter than the parameter is wide."""
        full = self._is_full(part)
        M = Factor("M" if full else "Mo", "silm", self._full if full else self._outer)
        left, right = self._vectors(row, column)
        P, R = matrix_factor(row, ROW_LETTERS), matrix_factor(column, COLUMN_LETTERS_UNCOUPLED)
        return [scale_term(Term(self._scale, (left, P, M, R, right)), self._exponent(part))]

    def _parameter_form(self, row: ScorePort, column: ScorePort, part: str) -> list[Term]:
        """``G_i = P^T M_i P'`` a token, formed a few tokens at a time so that no large M is ever held."""
        (sequences, queries, _), length = self.row.queries.shape, self.row.tokens.shape[1]
        widths = row.matrix_width, column.matrix_width
        G = row.matrix.new_empty(sequences, queries, *widths)
        per_token = 4 * sequences * length * max(length, *widths) * G.element_size()
        step = max(1, _CHUNK_BYTES // per_token)
        out, other = exponents_to_factor_out(size_exponents([row.matrix, column.matrix]), G.dtype)
        for start in range(0, queries, step):
            stop = min(start + step, queries)
            M = self._rows(part, start, stop)
            P, R = (
                ldexp(row.matrices_at(start, stop), -out),
                ldexp(column.matrices_at(start, stop), -other),
            )
            G[:, start:stop] = P.transpose(-1, -2) @ (M @ R)
        left, right = self._vectors(row, column)
        between = "si" + ROW_LETTERS.split(row)[1] + COLUMN_LETTERS_UNCOUPLED.split(column)[1]
        term = Term(self._scale, (left, Factor("G" if part == "full" else "Go", between, G), right))
        return [scale_term(term, self._exponent(part) + out + other)]

    def _low_rank_terms(self, row: ScorePort, column: ScorePort, curvature: LowRankTokenCurvature) -> list[Term]:
        """``R_i^T V^T J_i P`` on both sides: for losses whose curvature has few directions a token."""
        sides, total = [], self._exponents.outer
        for head, port, letter in (
            (self.row, row, ROW_LETTERS.split(row)[1]),
            (self.column, column, COLUMN_LETTERS_UNCOUPLED.split(column)[1]),
        ):
            met = einsum("slf,sifr->silr", self._values(head), curvature.root)
            seen = self._jacobian(head).transpose().apply(met)
            (out,) = exponents_to_factor_out([size_exponent(port.matrix)], seen.dtype)
            P, total = ldexp(port.matrices, -out), total + out
            Z = einsum("slq,silr->siqr" if P.ndim == 3 else "silq,silr->siqr", P, seen)
            sides.append(Factor(f"R'S{port.matrix_name}", f"si{letter}r", Z))
        left, right = self._vectors(row, column)
        return [scale_term(Term(self._scale, (left, sides[0], sides[1], right)), total)]

    def _functional_terms(self, row: ScorePort, column: ScorePort) -> list[Term]:
        """``P^T D_i P'`` with D kept as diagonal plus low rank."""
        if self.row is not self.column:
            return []
        D, out = self._activation_curvature
        left, right = self._vectors(row, column)
        P, R = matrix_factor(row, ROW_LETTERS), matrix_factor(column, COLUMN_LETTERS_UNCOUPLED)
        if _by_pair(row, column):
            open_rows = row_terms(D, "D", ROW_LETTERS, COLUMN_LETTERS_UNCOUPLED)
            found = [Term(self._scale * t.coefficient, (left, P, *t.factors, R, right)) for t in open_rows]
            return [scale_term(term, out) for term in found]
        one, two = exponents_to_factor_out(size_exponents([row.matrix, column.matrix]), row.matrix.dtype)
        between = sandwich_terms(
            D,
            (P.name, ldexp(row.matrices, -one), ROW_LETTERS.split(row)[1]),
            (R.name, ldexp(column.matrices, -two), COLUMN_LETTERS_UNCOUPLED.split(column)[1]),
            "D",
            ROW_LETTERS,
        )
        found = [Term(self._scale * term.coefficient, (left, *term.factors, right)) for term in between]
        return [scale_term(term, out + one + two) for term in found]


def _by_pair(row: ScorePort, column: ScorePort) -> bool:
    """Whether a vector depends on the key token too, so that the keys cannot be summed before it is met."""
    return row.key_turn is not None or column.key_turn is not None


def _add(matrices: Tensor, rows: RowMatrices) -> Tensor:
    """``M_i + D_i`` without a second full-size temporary."""
    total = matrices.clone()
    if rows.diagonal is not None:
        torch.diagonal(total, dim1=-2, dim2=-1).add_(rows.diagonal)
    if rows.left is not None and rows.right is not None:
        total.add_(rows.left @ rows.right.transpose(-1, -2))
    if rows.dense is not None:
        total.add_(rows.dense)
    return total
