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

from hessianlens.attention.state import HeadState, Rotation
from hessianlens.errors import expect
from hessianlens.layer.expansion import COLUMN_LETTERS_UNCOUPLED, ROW_LETTERS, response_terms, vector_factor
from hessianlens.operators import Factor, Term
from hessianlens.operators.ranges import shifted, size_exponents, taken_out


def value_score_terms(head: HeadState, value: str, score: str, gradient: Tensor) -> list[Term]:
    """The block of a value parameter (rows) and a score parameter (columns) of one head."""
    left, right = head.value_ports[value], head.score_ports[score]
    vjp = gradient if left.readout is None else gradient @ left.readout.T
    g = Factor("g" if left.readout is None else f"g{left.readout_name}", "si" + ROW_LETTERS.axes[1], vjp)
    content = (left.content_name, left.content, ROW_LETTERS.axes[0])
    between = response_terms(head, right, content, COLUMN_LETTERS_UNCOUPLED)
    vector = vector_factor(right, COLUMN_LETTERS_UNCOUPLED)
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

    It is the gradient of the loss with respect to a merged query-key matrix, over s. Rotary positions leave no merged
    matrix, so heads with them are refused.
    """
    expect(
        _turns(head) is None,
        "head: it has rotary positions, so its T-functional Hessian is no product B (x) I; use H.t_functional.",
    )
    B, exponent = _score_pair(head, gradient)
    return shifted(B, exponent)


def _score_pair(head: HeadState, gradient: Tensor) -> tuple[Tensor, int]:
    """The same, and a power of two that was taken out of it."""
    tensors = (gradient, head.values, head.queries, head.tokens)
    sizes = [*size_exponents(tensors), head.jacobian.size_exponent()]
    g, v, x, y, j = taken_out(sizes, gradient.dtype)
    vjp = head.jacobian.shifted(-j).transpose().apply_rows(head.vjp_to_weights(shifted(gradient, -g - v))[None])[0]
    queries, tokens = shifted(head.queries, -x), shifted(head.tokens, -y)
    return torch.tensordot(queries, vjp @ tokens, dims=([0, 1], [0, 1])) / head.scale, g + v + x + y + j


def score_pair_terms(head: HeadState, gradient: Tensor) -> list[Term]:
    """The T-functional summand ``B (x) I`` of the block of W_Q (rows) and W_K (columns).

    With rotary positions it is ``sum_il (J_i^T w_i)_l x_ia x_lc (R_i^T R_l)[b,d] / s``.
    """
    assert head.score_pair is not None
    turns = _turns(head)
    if turns is None:
        width = head.score_ports[head.score_pair[0]].matrix.shape[-1]
        return [Term(1.0, (Factor("B", "ac", score_pair_matrix(head, gradient)), Factor.identity("bd", width)))]
    factors = (
        Factor("J'w", "sil", _score_gradient(head, gradient)),
        Factor("x", "sia", head.queries),
        Factor("x", "slc", head.tokens),
        _turn_factor(turns[0], "ieb"),
        _turn_factor(turns[1], "led"),
    )
    return [Term(1 / head.scale, factors)]


def _score_gradient(head: HeadState, gradient: Tensor) -> Tensor:
    """``J_i^T w_i``, the gradient of the loss with respect to the scores."""
    return head.jacobian.transpose().apply_rows(head.vjp_to_weights(gradient)[None])[0]


def _turns(head: HeadState) -> tuple[Rotation, Rotation] | None:
    """Rotary maps of the query and of the key tokens, if the head has them."""
    queries = [port.query_turn for port in head.score_ports.values() if port.query_turn is not None]
    keys = [port.key_turn for port in head.score_ports.values() if port.key_turn is not None]
    return (queries[0], keys[0]) if queries and keys else None


def _turn_factor(turn: Rotation, letters: str) -> Factor:
    """``R_n[e, .]``, by sequence only where sequences have positions of their own."""
    matrices = turn.matrices()
    return Factor("R", letters, matrices[0]) if len(matrices) == 1 else Factor("R", "s" + letters, matrices)
