"""The value of attention and its first two derivatives, piece by piece; nothing of size L x S is kept.

With ``S = s Q K^T + B``, weights ``A = a(S)`` and a fixed matrix M of ones, or of what dropout leaves:
``O = (M o A) V``. Along changes (dq, dk, dv, db) scores change by ``U = s (dq K^T + q dk^T) + db``; a cotangent g of
the output gives the weights the cotangent ``W = M o g V^T``. J and D(w) are the two row derivatives of the activation.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.attention.sdpa.chunking import (
    AttentionOperands,
    AttentionRule,
    ChunkPiece,
    ScoreChange,
    expect_no_capped_bias,
    pieces,
)
from hessianlens.attention.sdpa.gathering import AttentionGradients, QueryRows
from hessianlens.derivatives.closed_form import Parts, own_precision


def _score_change(x: AttentionOperands, rule: AttentionRule, change: Parts) -> ScoreChange:
    dq, dk, _, db = change
    return ScoreChange(x, rule, dq, dk, db)


@own_precision
def value(x: AttentionOperands, rule: AttentionRule) -> Tensor:
    """``O = (M o A) V``, as rows (n, g, L, f)."""
    out = QueryRows(x)
    for piece in pieces(x, rule):
        out.add(piece.chunk, piece.dropped(piece.rows.weights) @ piece.v)
    return out.whole()


@own_precision
def jvp(x: AttentionOperands, rule: AttentionRule, change: Parts) -> Tensor:
    """``dO = (M o J U) V + (M o A) dv``: how the value changes with its inputs."""
    out, score_change = QueryRows(x), _score_change(x, rule, change)
    for piece in pieces(x, rule):
        u = score_change.at(piece.chunk)
        out.add(piece.chunk, _moved(piece, None if u is None else piece.rows.jvp(u), change[2]))
    return out.whole()


@own_precision
def vjp(x: AttentionOperands, rule: AttentionRule, g: Tensor, wanted: Sequence[bool]) -> Parts:
    """The gradient of ``<g, O>``: ``s E K``, ``s E^T Q``, ``(M o A)^T g`` and E, with ``E = J^T W``."""
    expect_no_capped_bias(rule, wanted[3])
    found = AttentionGradients(x, wanted)
    for piece in pieces(x, rule):
        above = piece.chunk.of_queries(g)
        if wanted[2]:
            found.values.add(piece.chunk, piece.dropped(piece.rows.weights).mT @ above)
        if found.needs_scores:
            e = piece.rows.vjp(piece.dropped(above @ piece.v.mT))
            found.add_scores(piece.chunk, e, rule.scale * (e @ piece.k) if wanted[0] else None)
            if wanted[1]:
                found.keys.add(piece.chunk, rule.scale * (e.mT @ piece.q))
    return found.whole()


@own_precision
def hvp(
    x: AttentionOperands,
    rule: AttentionRule,
    g: Tensor,
    change: Parts,
    wanted: Sequence[bool],
    pushing: bool,
    of_g: Tensor | None = None,
) -> Parts:
    """How the gradient of ``<g, O>`` changes with the inputs and with g, and behind it, with `pushing`, how O does.

    With ``E' = J^T (M o (g dv^T + dg V^T)) + D(W) U``: ``s (E' K + E dk)``, ``s (E'^T Q + E^T dq)``,
    ``(M o J U)^T g + (M o A)^T dg`` and E'.
    """
    dq, dk, dv, _ = change
    expect_no_capped_bias(rule, wanted[3])
    found, out, score_change = AttentionGradients(x, wanted), QueryRows(x), _score_change(x, rule, change)
    for piece in pieces(x, rule):
        chunk = piece.chunk
        above, more = chunk.of_queries(g), None if of_g is None else chunk.of_queries(of_g)
        moved, e, turned = _turned(piece, above, more, score_change.at(chunk), dv, found.needs_scores)
        if pushing:
            out.add(chunk, _moved(piece, moved, dv))
        if wanted[2]:
            values = piece.dropped(moved).mT @ above
            if more is not None:
                values = torch.baddbmm(values, piece.dropped(piece.rows.weights).mT, more)
            found.values.add(chunk, values)
        if turned is not None:
            _gather_turned(found, piece, turned, e, dq, dk)
    return (*found.whole(), out.whole() if pushing else None)


def _turned(
    piece: ChunkPiece, above: Tensor, more: Tensor | None, u: Tensor | None, dv: Tensor | None, scores: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """``J U``, E and E', the last two only where gradients with respect to scores are asked for."""
    rows = piece.rows
    if not scores:
        return torch.zeros_like(rows.weights) if u is None else rows.jvp(u), None, None
    w = piece.dropped(above @ piece.v.mT)
    dw = None if dv is None else above @ piece.chunk.of_keys(dv).mT
    if more is not None:
        dw = more @ piece.v.mT if dw is None else torch.baddbmm(dw, more, piece.v.mT)
    dw = None if dw is None else piece.dropped(dw)
    if u is not None:
        return rows.turned(w, dw, u)
    none = torch.zeros_like(rows.weights)
    return none, None, none if dw is None else rows.vjp(dw)


def _gather_turned(
    found: AttentionGradients, piece: ChunkPiece, turned: Tensor, e: Tensor | None, dq: Tensor | None, dk: Tensor | None
) -> None:
    """Adds ``s (E' K + E dk)`` and ``s (E'^T Q + E^T dq)``."""
    chunk, queries = piece.chunk, None
    if found.wanted[0]:
        queries = turned @ piece.k
        if e is not None and dk is not None:
            queries = torch.baddbmm(queries, e, chunk.of_keys(dk))
        queries = piece.scale * queries
    found.add_scores(chunk, turned, queries)
    if found.wanted[1]:
        keys = turned.mT @ piece.q
        if e is not None and dq is not None:
            keys = torch.baddbmm(keys, e.mT, chunk.of_queries(dq))
        found.keys.add(chunk, piece.scale * keys)


@own_precision
def second_jvp(x: AttentionOperands, rule: AttentionRule, first: Parts, second: Parts) -> Tensor:
    """The second derivative of the value along two changes of its inputs."""
    out = QueryRows(x)
    changes = [_score_change(x, rule, change) for change in (first, second)]
    for piece in pieces(x, rule):
        chunk, rows = piece.chunk, piece.rows
        u, t = (change.at(chunk) for change in changes)
        second_order = None if u is None or t is None else rows.second_jvp(u, t)
        for dq, dk in ((first[0], second[1]), (second[0], first[1])):
            if dq is not None and dk is not None:
                through = rows.jvp(rule.scale * (chunk.of_queries(dq) @ chunk.of_keys(dk).mT))
                second_order = through if second_order is None else second_order + through
        total = _moved(piece, second_order, None)
        for moved, dv in ((u, second[2]), (t, first[2])):
            if moved is not None and dv is not None:
                total = total + piece.dropped(rows.jvp(moved)) @ chunk.of_keys(dv)
        out.add(chunk, total)
    return out.whole()


def _moved(piece: ChunkPiece, weights: Tensor | None, dv: Tensor | None) -> Tensor:
    """``(M o dA) V + (M o A) dv``."""
    total = None if weights is None else piece.dropped(weights) @ piece.v
    if dv is not None:
        through = piece.dropped(piece.rows.weights) @ piece.chunk.of_keys(dv)
        total = through if total is None else total + through
    return piece.rows.weights.new_zeros(*piece.rows.weights.shape[:2], piece.v.shape[-1]) if total is None else total
