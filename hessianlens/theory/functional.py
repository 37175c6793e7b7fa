"""The functional Hessian of an attention layer: second derivatives of the output, weighted by the loss gradient.

``H_f(W, W') = sum_i g_i . d^2 F_i / dW dW'``: Theorem 3.2 of the paper, for any activation and loss. It lives within
one head. The part in which both parameters enter through the scores is in `scores`; here are the blocks in which values
take part, and the T-functional summand of the query-key block:

    VV  0        VQ  (X' J_i K)[a,d] g_ib x_ic / s        VK  (X' J_i X)[a,c] g_ib q_id / s
    QK  (T-functional)  delta_bd sum_i x_ia (X' J_i' w_i)[c] / s
"""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.attention.state import HeadState
from hessianlens.operators import Factor, Term
from hessianlens.theory.expansion import COLUMN_LETTERS_UNCOUPLED, ROW_LETTERS, sandwich_terms


def value_score_terms(head: HeadState, value: str, score: str, gradient: Tensor) -> list[Term]:
    """The block of a value parameter (rows) and a score parameter (columns) of one head."""
    left, right = head.value_ports[value], head.score_ports[score]
    vector_letter, matrix_letter = COLUMN_LETTERS_UNCOUPLED.split(right)
    pulled = gradient if left.readout is None else gradient @ left.readout.T
    g = Factor("g" if left.readout is None else f"g{left.readout_name}", "si" + ROW_LETTERS.axes[1], pulled)
    vector = Factor(right.vector_name, "si" + vector_letter, right.vector)
    between = sandwich_terms(
        head.jacobian,
        (left.content_name, left.content, ROW_LETTERS.axes[0]),
        (right.matrix_name, right.matrix, matrix_letter),
        "J",
        ROW_LETTERS,
    )
    return [Term(term.coefficient / head.scale, (*term.factors, g, vector)) for term in between]


def value_pair_terms(head: HeadState, gradient: Tensor) -> list[Term]:
    """The block of the two factors of a value matrix W_O W_U: ``(M_1^T g)[a,d] delta_bc``."""
    assert head.value_pair is not None
    first, _ = head.value_pair
    port = head.value_ports[first]
    B = torch.tensordot(port.vector, gradient, dims=([0, 1], [0, 1]))
    return [Term(1.0, (Factor("M1'g", "ad", B), Factor.identity("bc", port.width)))]


def score_pair_matrix(head: HeadState, gradient: Tensor) -> Tensor:
    """``B = sum_i x_i (X^T J_i^T w_i)^T / s``, which carries the whole T-functional Hessian.

    It is the gradient of the loss with respect to a merged query-key matrix, over s.
    """
    pulled = head.jacobian.transpose().apply_rows(head.pulled_back(gradient))
    return torch.tensordot(head.queries, pulled @ head.tokens, dims=([0, 1], [0, 1])) / head.scale


def score_pair_terms(head: HeadState, gradient: Tensor) -> list[Term]:
    """The T-functional summand ``B (x) I`` of the block of W_Q (rows) and W_K (columns)."""
    assert head.score_pair is not None
    width = head.score_ports[head.score_pair[0]].matrix.shape[-1]
    return [Term(1.0, (Factor("B", "ac", score_pair_matrix(head, gradient)), Factor.identity("bd", width)))]
