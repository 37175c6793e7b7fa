"""Traces of both score blocks of a head under a curvature of any form, from one product of all tokens.

Where the scores are those of one merged matrix, the keys are tokens times W_K: with ``S_i = V' J_i X``, ``[f, d]``,

    keys     tr(X' J_i' V C_i V' J_i X) = <C_i S_i, S_i>
    queries  tr(K' J_i' V C_i V' J_i K) = <C_i S_i, S_i W_K W_K'>
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import vecdot

from hessianlens.attention.rows import RowColumns
from hessianlens.attention.state import HeadState
from hessianlens.losses import UncoupledCurvature

_PAIRS_BYTES = 2**25
"""Of the products of all entries of values and tokens, in a sequence."""
_WORKSPACE_BYTES = 2**20
"""Of what is formed of some tokens at a time: so little that memory which is there already will do."""


def fits(head: HeadState) -> bool:
    """Whether a head is small enough: wider ones go some columns at a time."""
    length, width = head.tokens.shape[1:]
    return length * width * head.values.shape[2] * head.values.element_size() <= _PAIRS_BYTES


def outer_traces(
    head: HeadState,
    jacobian: RowColumns,
    curvature: UncoupledCurvature,
    other: Tensor,
    total: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Those of the queries' and of the keys' small matrices, ``[s, i]`` each.

    Args:
        head: The head, centred.
        jacobian: ``J_i``.
        curvature: Of the loss.
        other: ``W_K``.
        total: Sums of rows with the weights of a column, ``column @ rows``.
    """
    X, V, merged = head.tokens, head.values, other @ other.T
    (sequences, rows, length), shape = head.weights.shape, (V.shape[2], X.shape[2])
    met = [(number, total(left, V), total(right, X)) for number, left, right in jacobian.pairs]
    step = min(rows, max(1, _WORKSPACE_BYTES // (V.shape[2] * X.shape[2] * V.element_size())))
    queries, keys = V.new_empty(sequences, rows), V.new_empty(sequences, rows)
    pairs, formed = V.new_empty(length, *shape), V.new_empty(step, *shape)
    for s in range(sequences):
        torch.mul(V[s, :, :, None], X[s, :, None], out=pairs)
        own = curvature.of_sequences(s, s + 1)
        for start in range(0, rows, step):
            at = slice(start, min(start + step, rows))
            S = formed[: at.stop - start]
            if jacobian.diagonal is None:
                S.zero_()
            else:
                torch.mm(jacobian.diagonal[s, at], pairs.flatten(1), out=S.flatten(1))
            for number, values, tokens in met:
                S.addcmul_(values[s, at, :, None], tokens[s, at, None], value=number)
            hvp = own.at(at).times(S[None])[0].flatten(1)
            keys[s, at] = vecdot(hvp, S.flatten(1))
            queries[s, at] = vecdot(hvp, (S @ merged).flatten(1))
    return queries, keys
