"""The outer-product (Gauss-Newton) Hessian of an attention layer.

``H_o(W, W') = sum_ij (dF_i/dW)^T C_ij (dF_j/dW')``: Theorem 3.1 of the paper for softmax and square loss, and its
extension to any activation, any loss, batches, heads and parameterisations. Entry by entry, with
``S_i = V^T J_i K / s`` and ``N_i = V^T J_i X / s``:

    VV  m_ia C_ij[b,d] m_jc            QQ  x_ia (S_i' C_ij S_j)[b,d] x_jc       KK  q_ib (N_i' C_ij N_j)[a,c] q_jd
    VQ  m_ia (C_ij S_j)[b,d] x_jc      VK  m_ia (C_ij N_j)[b,c] q_jd            QK  x_ia (S_i' C_ij N_j)[b,c] q_jd

Where the loss couples no two tokens, QQ, QK and KK are in `scores`, with their functional parts.
"""

from __future__ import annotations

from hessianlens.attention.state import HeadState
from hessianlens.layer.expansion import (
    COLUMN_LETTERS,
    COLUMN_LETTERS_UNCOUPLED,
    ROW_LETTERS,
    Letters,
    collapsed_response,
    output_derivative,
    vector_factor,
)
from hessianlens.losses import OutputCurvature
from hessianlens.operators import Factor, Term


def outer_terms(
    row_head: HeadState, row: str, column_head: HeadState, column: str, curvature: OutputCurvature
) -> list[Term]:
    """The outer-product block between two parameters, at least one of them a value parameter or tokens coupled."""
    right_letters = COLUMN_LETTERS if curvature.coupled else COLUMN_LETTERS_UNCOUPLED
    derivative = _collapsed_derivative if curvature.coupled else output_derivative
    left = derivative(row_head, row, ROW_LETTERS)
    right = derivative(column_head, column, right_letters)
    between = curvature.factors((ROW_LETTERS.token, ROW_LETTERS.feature), (right_letters.token, right_letters.feature))
    return [Term(x.coefficient * y.coefficient, (*x.factors, *between, *y.factors)) for x in left for y in right]


def _collapsed_derivative(head: HeadState, name: str, letters: Letters) -> list[Term]:
    """``dF/dW`` with ``S_i`` in full: beside a curvature that couples tokens it is small."""
    if name in head.value_ports:
        return output_derivative(head, name, letters)
    port = head.score_ports[name]
    if port.key_turn is not None:
        return output_derivative(head, name, letters)
    S = Factor(
        f"S{port.matrix_name}",
        f"s{letters.token}{letters.feature}{letters.split(port)[1]}",
        collapsed_response(head, port),
    )
    return [Term(1 / head.scale, (vector_factor(port, letters), S))]
