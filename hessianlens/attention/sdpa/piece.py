"""A chunk with what every pass needs of it: its operands and the rows of its scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.sdpa.chunking import AttentionOperands, Chunk, chunks, masked_entries
from hessianlens.attention.sdpa.row_rules import AttentionRows, rows_of
from hessianlens.attention.sdpa.settings import AttentionRule
from hessianlens.errors import expect


@dataclass(frozen=True)
class ChunkPiece:
    """Queries (n, g r, e), keys and values (n, c, e) of a chunk, the rows of their scores, and what dropout leaves."""

    chunk: Chunk
    q: Tensor
    k: Tensor
    v: Tensor
    rows: AttentionRows
    scale: float
    kept: Tensor | None

    def dropped(self, weights: Tensor) -> Tensor:
        """``M o X``."""
        return weights if self.kept is None else weights * self.kept


def pieces(x: AttentionOperands, rule: AttentionRule) -> Iterator[ChunkPiece]:
    """Every chunk, with its scores computed anew."""
    groups = x.q.shape[1]
    for chunk in chunks(x, rule):
        q, k = chunk.of_queries(x.q), chunk.of_keys(x.k)
        scores = (q @ k.mT).mul_(rule.scale)
        bias = None if x.bias is None else _below_each_other(chunk.of_scores(x.bias), groups, scores)
        dark = masked_entries(chunk, rule, x.visible, x.q.device)
        if dark is not None:
            dark = _below_each_other(dark, groups, scores)
        kept = _kept(scores, chunk, rule)
        may_be_empty = x.bias is not None or x.visible is not None or rule.window is not None
        rows = rows_of(scores, bias, dark, may_be_empty, rule.activation, rule.softcap)
        yield ChunkPiece(chunk, q, k, chunk.of_keys(x.v), rows, rule.scale, kept)


def _below_each_other(entries: Tensor, groups: int, scores: Tensor) -> Tensor:
    """Entries (n or 1, g or 1, r or 1, c or 1), or (r, c), in a form that adds to scores (n, g r, c)."""
    if groups == 1:
        return entries if entries.ndim == 2 else entries[:, 0]
    rows = scores.shape[1] // groups
    entries = entries if entries.ndim == 4 else entries[None, None]
    return entries.expand(entries.shape[0], groups, rows, entries.shape[-1]).flatten(1, 2)


def _kept(scores: Tensor, chunk: Chunk, rule: AttentionRule) -> Tensor | None:
    if not rule.dropout:
        return None
    source = torch.Generator(device=scores.device).manual_seed(rule.seed + chunk.index)
    drawn = torch.rand(scores.shape, generator=source, device=scores.device, dtype=torch.float32)
    return (drawn >= rule.dropout).to(scores.dtype) / (1 - rule.dropout)


def expect_no_capped_bias(rule: AttentionRule, differentiated: bool) -> None:
    """A bias is added behind the cap, where the derivatives of scores do not reach."""
    expect(
        rule.softcap is None or not differentiated,
        "attn_mask: got derivatives with respect to it beside a softcap, expected a mask that is not differentiated.",
    )


class ScoreChange:
    """``U = s (dq K^T + q dk^T) + db``, chunk by chunk; both products are one of double width."""

    def __init__(
        self, x: AttentionOperands, rule: AttentionRule, dq: Tensor | None, dk: Tensor | None, db: Tensor | None
    ) -> None:
        expect_no_capped_bias(rule, db is not None)
        self._scale, self._bias, self._groups = rule.scale, db, x.q.shape[1]
        self._left: Tensor | None
        self._right: Tensor | None
        if dq is not None and dk is not None:
            self._left, self._right = torch.cat([dq, x.q], -1), torch.cat([x.k, dk], -1)
        else:
            self._left, self._right = (dq, x.k) if dq is not None else (x.q, dk)

    def at(self, chunk: Chunk) -> Tensor | None:
        """The change of the scores of a chunk, or None if nothing changes them."""
        change = None
        if self._left is not None and self._right is not None:
            change = (chunk.of_queries(self._left) @ chunk.of_keys(self._right).mT).mul_(self._scale)
        if self._bias is None:
            return change
        n, rows, columns = chunk.pairs, chunk.rows, chunk.columns
        shape = (n.stop - n.start, self._groups * (rows.stop - rows.start), columns.stop - columns.start)
        added = _below_each_other(chunk.of_scores(self._bias), self._groups, self._bias.new_empty(shape))
        return added.expand(shape) if change is None else change + added
