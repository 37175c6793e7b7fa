"""First derivatives of a head's output, as factors in index notation.

With the row derivatives J kept as diagonal plus low rank, ``left^T J_i right`` is a short sum of products in which
nothing of size L x L a token, or d_V x d_K a token, is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, einsum

from hessianlens.attention.rows import RowMatrices
from hessianlens.attention.state import HeadState, ScorePort, ValuePort
from hessianlens.operators import Factor, Term


@dataclass(frozen=True, eq=False)
class Letters:
    """Index letters of one side of a block.

    Attributes:
        axes: Row and column of the parameter.
        token: Query token.
        feature: Output feature.
        key: Key token.
        rank: Rank index of the row derivative.
    """

    axes: str
    token: str
    feature: str
    key: str
    rank: str

    def split(self, port: ScorePort) -> tuple[str, str]:
        """Letter of the axis that the port's vector contracts, and of the other one."""
        return self.axes[port.vector_axis], self.axes[1 - port.vector_axis]


_SMALL = 2**16
"""Entries of ``left^T R_i right`` over all tokens up to which it is simply formed: fewer, if larger, operations."""

ROW_LETTERS = Letters("ab", "i", "f", "l", "q")
COLUMN_LETTERS = Letters("cd", "j", "g", "m", "p")
COLUMN_LETTERS_UNCOUPLED = Letters("cd", "i", "g", "m", "p")


def vector_factor(port: ScorePort, letters: Letters) -> Factor:
    """The port's vector; with a turn at the keys it also carries the key token."""
    key, name = ("", port.vector_name) if port.key_turn is None else (letters.key, f"R'{port.vector_name}")
    return Factor(name, f"s{letters.token}{key}{letters.split(port)[0]}", port.vectors)


def matrix_factor(port: ScorePort, letters: Letters) -> Factor:
    """The port's matrix; with a turn at the queries it also carries the query token."""
    token, name = ("", port.matrix_name) if port.query_turn is None else (letters.token, f"R'{port.matrix_name}")
    return Factor(name, f"s{token}{letters.key}{letters.split(port)[1]}", port.matrices)


def sandwich_terms(
    rows: RowMatrices,
    left: tuple[str, Tensor, str],
    right: tuple[str, Tensor, str],
    name: str,
    letters: Letters,
) -> list[Term]:
    """``left^T R_i right`` for every token, as terms over the token letter and one letter of each side.

    Args:
        rows: The matrices R.
        left: Name, tensor ``[s, l, .]`` or ``[s, i, l, .]`` and letter of the left side.
        right: The same for the right side.
        name: What the diagonal of R is called.
        letters: Supplies token, key and rank letters.
    """
    (left_name, _, x), (right_name, _, y) = left, right
    P, Q = (side if side.ndim == 4 else side[:, None] for side in (left[1], right[1]))
    token, rank = letters.token, letters.rank
    if rows.dense is not None or rows.shape[0] * rows.shape[1] * P.shape[-1] * Q.shape[-1] <= _SMALL:
        small = P.transpose(-1, -2) @ rows.apply(Q)
        return [Term(1.0, (Factor(f"({left_name}'{name} {right_name})", f"s{token}{x}{y}", small),))]
    terms = []
    if rows.diagonal is not None:
        factors = (
            _side_factor(left, letters),
            Factor(name, f"s{token}{letters.key}", rows.diagonal),
            _side_factor(right, letters),
        )
        terms.append(Term(1.0, factors))
    if rows.left is not None and rows.right is not None:
        thin = (
            Factor(f"<{left_name}>", f"s{token}{x}{rank}", _projected(left[1], rows.left)),
            Factor(f"<{right_name}>", f"s{token}{y}{rank}", _projected(right[1], rows.right)),
        )
        terms.append(Term(1.0, thin))
    return terms


def _projected(side: Tensor, columns: Tensor) -> Tensor:
    """``side^T columns_i`` for every token, ``[s, i, ., r]``."""
    return einsum("slx,silr->sixr" if side.ndim == 3 else "silx,silr->sixr", side, columns)


def _side_factor(side: tuple[str, Tensor, str], letters: Letters) -> Factor:
    name, tensor, letter = side
    return Factor(name, f"s{letters.token if tensor.ndim == 4 else ''}{letters.key}{letter}", tensor)


def opened_terms(rows: RowMatrices, left: tuple[str, Tensor, str], name: str, letters: Letters) -> list[Term]:
    """``left^T R_i`` for every token with the key token still open, for parameters that need it."""
    left_name, P, x = left
    token, key, rank = letters.token, letters.key, letters.rank
    if rows.dense is not None or rows.shape[0] * rows.shape[1] * rows.shape[2] * P.shape[-1] <= _SMALL:
        return [Term(1.0, (Factor(f"({left_name}'{name})", f"s{token}{key}{x}", rows.transpose().apply(P[:, None])),))]
    terms = []
    if rows.diagonal is not None:
        diagonal = Factor(name, f"s{token}{key}", rows.diagonal)
        terms.append(Term(1.0, (Factor(left_name, f"s{key}{x}", P), diagonal)))
    if rows.left is not None and rows.right is not None:
        thin = Factor(f"<{left_name}>", f"s{token}{x}{rank}", _projected(P, rows.left))
        terms.append(Term(1.0, (thin, Factor(f"{name}r", f"s{token}{key}{rank}", rows.right))))
    return terms


def row_terms(rows: RowMatrices, name: str, row: Letters, column: Letters) -> list[Term]:
    """``R_i`` itself between the key tokens of the two sides."""
    token, key, other = row.token, row.key, column.key
    length = rows.shape[2]
    if rows.diagonal is rows.left is rows.dense is None:
        return []
    if rows.dense is not None or rows.shape[0] * rows.shape[1] * length * length <= _SMALL:
        return [Term(1.0, (Factor(name, f"s{token}{key}{other}", rows.to_dense()),))]
    terms = []
    if rows.diagonal is not None:
        terms.append(Term(1.0, (Factor(name, f"s{token}{key}", rows.diagonal), Factor.identity(key + other, length))))
    if rows.left is not None and rows.right is not None:
        thin = (
            Factor(f"{name}l", f"s{token}{key}{row.rank}", rows.left),
            Factor(f"{name}r", f"s{token}{other}{row.rank}", rows.right),
        )
        terms.append(Term(1.0, thin))
    return terms


def output_derivative(head: HeadState, name: str, letters: Letters) -> list[Term]:
    """``dF[s, token, feature] / dW[axes]`` as terms.

    ``dF_i/dW_V [dW] = dW^T m_i``; ``dF_i/dW_Q [dW] = V^T J_i K (dW^T x_i) / s`` and so on, one rule for every port.
    """
    if name in head.value_ports:
        value = head.value_ports[name]
        return [Term(1.0, (value_factors if value.turn is None else turned_value_factors)(value, letters))]
    port = head.score_ports[name]
    response = response_terms(head, port, ("v", head.values, letters.feature), letters)
    vector = vector_factor(port, letters)
    return [Term(term.coefficient / head.scale, (vector, *term.factors)) for term in response]


def response_terms(head: HeadState, port: ScorePort, left: tuple[str, Tensor, str], letters: Letters) -> list[Term]:
    """``left^T J_i P``; with a vector for every pair of tokens the key token stays open, to be met by that vector."""
    if port.key_turn is None:
        matrix = matrix_factor(port, letters)
        return sandwich_terms(head.jacobian, left, (matrix.name, port.matrices, letters.split(port)[1]), "J", letters)
    opened = opened_terms(head.jacobian, left, "J", letters)
    return [Term(term.coefficient, (*term.factors, matrix_factor(port, letters))) for term in opened]


def value_factors(port: ValuePort, letters: Letters) -> tuple[Factor, ...]:
    """``vector[s, token, row] readout[column, feature]``; an identity where there is no readout."""
    vector = Factor(port.vector_name, f"s{letters.token}{letters.axes[0]}", port.vector)
    between = letters.axes[1] + letters.feature
    return vector, readout_factor(port, between)


def turned_value_factors(port: ValuePort, letters: Letters) -> tuple[Factor, ...]:
    """``weights[s, token, key] content[s, key, row] M[s, key, feature, column]`` with M in front of the readout."""
    assert port.turn is not None
    M = port.turn.matrices().expand(len(port.content), -1, -1, -1)
    read = M.mT if port.readout is None else M.mT @ port.readout
    return (
        Factor("A", f"s{letters.token}{letters.key}", port.weights),
        Factor(port.content_name, f"s{letters.key}{letters.axes[0]}", port.content),
        Factor(f"M'{port.readout_name}", f"s{letters.key}{letters.axes[1]}{letters.feature}", read),
    )


def readout_factor(port: ValuePort, indices: str) -> Factor:
    """The matrix behind a value parameter; its width is the parameter's own where it is the identity."""
    if port.readout is None:
        return Factor.identity(indices, port.width)
    return Factor(port.readout_name, indices, port.readout)


def collapsed_response(head: HeadState, port: ScorePort) -> Tensor:
    """``S_i = V^T J_i P``, shape ``[s, i, f, q]``, in full: for losses that couple tokens."""
    return head.values.transpose(-1, -2)[:, None] @ head.jacobian.apply(port.matrices_at(0, head.queries.shape[1]))
