"""The functional Hessian of an attention layer: second derivatives of the output, weighted by the loss gradient.

``H_f(W, W') = sum_i g_i . d^2 F_i / dW dW'``: Theorem 3.2 of the paper, for any activation and loss. It lives within
one head. The part in which both parameters enter through the scores is in `scores`; here are the blocks in which values
take part, and the T-functional summand of the query-key block:

    VV  0        VQ  (X' J_i K)[a,d] g_ib x_ic / s        VK  (X' J_i X)[a,c] g_ib q_id / s
    QK  (T-functional)  delta_bd sum_i x_ia (X' J_i' w_i)[c] / s

Where queries or keys are a nonlinear function of their tokens, as behind a norm, that summand has blocks QQ and KK too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.attention.state import HeadState, LinkedFactors, ScorePort, ValuePort
from hessianlens.attention.token_maps import TokenMap
from hessianlens.errors import expect
from hessianlens.layer.expansion import (
    COLUMN_LETTERS_UNCOUPLED,
    ROW_LETTERS,
    matrix_factor,
    response_terms,
    row_terms,
    vector_factor,
)
from hessianlens.operators import Factor, Term
from hessianlens.operators.exponent_scaling import exponents_to_factor_out, ldexp, size_exponents


def value_score_terms(head: HeadState, value: str, score: str, gradient: Tensor) -> list[Term]:
    """The block of a value parameter (rows) and a score parameter (columns) of one head."""
    left, right = head.value_ports[value], head.score_ports[score]
    vjp = gradient if left.readout is None else gradient @ left.readout.T
    if left.turn is not None:
        return _turned_value_score_terms(head, left, right, vjp)
    g = Factor("g" if left.readout is None else f"g{left.readout_name}", "si" + ROW_LETTERS.axes[1], vjp)
    content = (left.content_name, left.content, ROW_LETTERS.axes[0])
    between = response_terms(head, right, content, COLUMN_LETTERS_UNCOUPLED)
    vector = vector_factor(right, COLUMN_LETTERS_UNCOUPLED)
    return [Term(term.coefficient / head.scale, (*term.factors, g, vector)) for term in between]


def _turned_value_score_terms(head: HeadState, left: ValuePort, right: ScorePort, vjp: Tensor) -> list[Term]:
    """The same where values pass maps of their token: ``u_la (M_l' g_i)[b] J_ilm P_md`` with the vector of the scores.

    Args:
        head: The head.
        left: The value parameter.
        right: The score parameter.
        vjp: ``g`` in front of the readout.
    """
    assert left.turn is not None
    key, a, b = ROW_LETTERS.key, ROW_LETTERS.axes[0], ROW_LETTERS.axes[1]
    M = left.turn.matrices().expand(len(left.content), -1, -1, -1)
    own = (
        Factor(left.content_name, f"s{key}{a}", left.content),
        Factor("M", f"s{key}{ROW_LETTERS.feature}{b}", M),
        Factor(f"g{left.readout_name}", f"s{ROW_LETTERS.token}{ROW_LETTERS.feature}", vjp),
    )
    other = matrix_factor(right, COLUMN_LETTERS_UNCOUPLED), vector_factor(right, COLUMN_LETTERS_UNCOUPLED)
    between = row_terms(head.jacobian, "J", ROW_LETTERS, COLUMN_LETTERS_UNCOUPLED)
    return [Term(term.coefficient / head.scale, (*own, *term.factors, *other)) for term in between]


def value_pair_terms(head: HeadState, row: str, column: str, gradient: Tensor) -> list[Term] | None:
    """The block of two value parameters; None where that of (column, row) is the one that is known.

    Of the two factors of a value matrix W_O W_U it is ``(M_1^T g)[a,d] delta_bc``. Where values are no linear function
    of what their parameters put out, their second derivative along the gradient is added.
    """
    if not head.value_names:
        if head.value_pair == (column, row):
            return None
        if head.value_pair != (row, column):
            return []
        port = head.value_ports[row]
        B = torch.tensordot(port.vector, gradient, dims=([0, 1], [0, 1]))
        return [Term(1.0, (Factor("M1'g", "ad", B), Factor.identity("bc", port.width)))]
    score_gradient = _score_gradient(head, gradient) / head.scale
    found = _linked_terms(head.linked_factors(score_gradient, gradient), row, column)
    curvatures = head.input_curvatures(score_gradient, gradient)
    if (row, column) in curvatures:
        ports = head.value_ports[row], head.value_ports[column]
        return [*found, _curvature_term(ports[0].content, ports[1].content, curvatures[row, column])]
    return None if (column, row) in curvatures else found


def score_pair_matrix(head: HeadState, gradient: Tensor) -> Tensor:
    """``B = sum_i x_i (X^T J_i^T w_i)^T / s``, which carries the whole T-functional Hessian.

    It is the gradient of the loss with respect to a merged query-key matrix, over s. Rotary positions and norms of
    queries or keys leave no merged matrix, so heads with them are refused.
    """
    expect(
        all(port.turn is None for port in head.score_ports.values()),
        "head: it has rotary positions or a norm of queries or keys, so its T-functional Hessian is no product "
        "B (x) I; use H.t_functional.",
    )
    B, exponent = _score_pair(head, gradient)
    return ldexp(B, exponent)


def _score_pair(head: HeadState, gradient: Tensor) -> tuple[Tensor, int]:
    """The same, and a power of two that was taken out of it."""
    tensors = (gradient, head.values, head.queries, head.tokens)
    sizes = [*size_exponents(tensors), head.jacobian.size_exponent()]
    g, v, x, y, j = exponents_to_factor_out(sizes, gradient.dtype)
    vjp = head.jacobian.ldexp(-j).transpose().apply_rows(head.vjp_to_weights(ldexp(gradient, -g - v))[None])[0]
    queries, tokens = ldexp(head.queries, -x), ldexp(head.tokens, -y)
    return torch.tensordot(queries, vjp @ tokens, dims=([0, 1], [0, 1])) / head.scale, g + v + x + y + j


def score_pair_terms(head: HeadState, row: str, column: str, gradient: Tensor) -> list[Term] | None:
    """The T-functional block of two score parameters; None where that of (column, row) is the one that is known.

    Of W_Q (rows) and W_K (columns) it is ``B (x) I``; where queries or keys pass maps M of their own token, as rotary
    positions or the Jacobian of a norm, ``sum_il (J_i^T w_i)_l u_ia u_lc (M_i^T M_l)[b,d] / s``. Two parameters of
    queries, or of keys, share the second derivative of these: ``sum_n u_na u_nc D_n[b,d]``.
    """
    sides = head.query_names, head.key_names
    if row in sides[1] and column in sides[0]:
        return None
    if row in sides[0] and column in sides[1]:
        ports = head.score_ports[row], head.score_ports[column]
        plain = (row, column) == head.score_pair and all(port.turn is None for port in ports)
        return [_merged_term(head, gradient)] if plain else [_product_term(head, *ports, gradient)]
    if not any(row in side and column in side for side in sides):
        return []
    score_gradient = _score_gradient(head, gradient) / head.scale
    found = _linked_terms(head.linked_factors(score_gradient, gradient), row, column)
    curvatures = head.input_curvatures(score_gradient, gradient)
    if (row, column) in curvatures:
        ports = head.score_ports[row], head.score_ports[column]
        return [*found, _curvature_term(ports[0].inputs, ports[1].inputs, curvatures[row, column])]
    return None if (column, row) in curvatures else found


def _merged_term(head: HeadState, gradient: Tensor) -> Term:
    assert head.score_pair is not None
    width = head.score_ports[head.score_pair[0]].matrix.shape[-1]
    return Term(1.0, (Factor("B", "ac", score_pair_matrix(head, gradient)), Factor.identity("bd", width)))


def _product_term(head: HeadState, query: ScorePort, key: ScorePort, gradient: Tensor) -> Term:
    """A parameter of the queries and one of the keys."""
    first, second = query.query_turn, key.key_turn
    between: list[Factor] = []
    if first is None and second is None:
        between = [Factor.identity("bd", query.matrix.shape[-1])]
    if first is not None:
        between.append(_turn_factor(first, "ieb" if second is not None else "idb"))
    if second is not None:
        between.append(_turn_factor(second, "led" if first is not None else "lbd"))
    factors = (
        Factor("J'w", "sil", _score_gradient(head, gradient)),
        Factor(query.vector_name, "sia", query.inputs),
        Factor(key.matrix_name, "slc", key.inputs),
        *between,
    )
    return Term(1 / head.scale, factors)


def _curvature_term(row: Tensor, column: Tensor, matrices: Tensor) -> Term:
    """Two parameters of one side, by what they are multiplied with."""
    return Term(1.0, (Factor("u", "sia", row), Factor("u", "sic", column), Factor("D", "sibd", matrices)))


def _linked_terms(factors: Sequence[LinkedFactors], row: str, column: str) -> list[Term]:
    """Two parameters of which one acts on what the other puts out."""
    found = []
    for each in factors:
        names = each.link.outer, each.link.inner
        if (row, column) in (names, names[::-1]):
            (a, b), (c, d) = ("ab", "cd") if names == (row, column) else ("cd", "ab")
            u, v = Factor("u", f"si{c}", each.inputs), Factor("v", f"si{b}", each.gradient)
            found.append(Term(1.0, (v, Factor("J", f"si{a}{d}", each.link.jacobian), u)))
    return found


def _score_gradient(head: HeadState, gradient: Tensor) -> Tensor:
    """``J_i^T w_i``, the gradient of the loss with respect to the scores."""
    return head.jacobian.transpose().apply_rows(head.vjp_to_weights(gradient)[None])[0]


def _turn_factor(turn: TokenMap, letters: str) -> Factor:
    """``M_n[e, .]``, by sequence only where sequences have maps of their own."""
    matrices = turn.matrices()
    return Factor("R", letters, matrices[0]) if len(matrices) == 1 else Factor("R", "s" + letters, matrices)
