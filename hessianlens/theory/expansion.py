"""First derivatives of a head's output, as factors in index notation.

With the row derivatives J kept as diagonal plus low rank, ``left^T J_i right`` is a short sum of products in which
nothing of size L x L a token, or d_V x d_K a token, is formed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

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
        left: Name, tensor ``[s, l, .]`` and letter of the left side.
        right: The same for the right side.
        name: What the diagonal of R is called.
        letters: Supplies token, key and rank letters.
    """
    (left_name, P, x), (right_name, Q, y) = left, right
    token, key, rank = letters.token, letters.key, letters.rank
    if rows.dense is not None or rows.shape[0] * rows.shape[1] * P.shape[-1] * Q.shape[-1] <= _SMALL:
        small = P.transpose(-1, -2)[:, None] @ rows.apply(Q[:, None])
        return [Term(1.0, (Factor(f"({left_name}'{name} {right_name})", f"s{token}{x}{y}", small),))]
    terms = []
    if rows.diagonal is not None:
        factors = (
            Factor(left_name, f"s{key}{x}", P),
            Factor(name, f"s{token}{key}", rows.diagonal),
            Factor(right_name, f"s{key}{y}", Q),
        )
        terms.append(Term(1.0, factors))
    if rows.left is not None and rows.right is not None:
        u = P.transpose(-1, -2)[:, None] @ rows.left
        v = Q.transpose(-1, -2)[:, None] @ rows.right
        thin = (
            Factor(f"<{left_name}>", f"s{token}{x}{rank}", u),
            Factor(f"<{right_name}>", f"s{token}{y}{rank}", v),
        )
        terms.append(Term(1.0, thin))
    return terms


def output_derivative(head: HeadState, name: str, letters: Letters) -> list[Term]:
    """``dF[s, token, feature] / dW[axes]`` as terms.

    ``dF_i/dW_V [dW] = dW^T m_i``; ``dF_i/dW_Q [dW] = V^T J_i K (dW^T x_i) / s`` and so on, one rule for every port.
    """
    if name in head.value_ports:
        return [Term(1.0, value_factors(head.value_ports[name], letters))]
    port = head.score_ports[name]
    vector_letter, matrix_letter = letters.split(port)
    vector = Factor(port.vector_name, f"s{letters.token}{vector_letter}", port.vector)
    response = sandwich_terms(
        head.jacobian,
        ("v", head.values, letters.feature),
        (port.matrix_name, port.matrix, matrix_letter),
        "J",
        letters,
    )
    return [Term(term.coefficient / head.scale, (vector, *term.factors)) for term in response]


def value_factors(port: ValuePort, letters: Letters) -> tuple[Factor, ...]:
    """``vector[s, token, row] readout[column, feature]``; an identity where there is no readout."""
    vector = Factor(port.vector_name, f"s{letters.token}{letters.axes[0]}", port.vector)
    between = letters.axes[1] + letters.feature
    return vector, readout_factor(port, between)


def readout_factor(port: ValuePort, indices: str) -> Factor:
    """The matrix behind a value parameter; its width is the parameter's own where it is the identity."""
    if port.readout is None:
        return Factor.identity(indices, port.width)
    return Factor(port.readout_name, indices, port.readout)


def collapsed_response(head: HeadState, port: ScorePort) -> Tensor:
    """``S_i = V^T J_i P``, shape ``[s, i, f, q]``, in full: for losses that couple tokens."""
    return head.values.transpose(-1, -2)[:, None] @ head.jacobian.apply(port.matrix[:, None])
