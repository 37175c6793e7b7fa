"""Attention in pieces: some heads, some rows of queries, and the keys that these can see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.activations import Activation, RowFunction
from hessianlens.attention.sdpa.row_rules import AttentionRows, rows_of
from hessianlens.errors import expect


@dataclass(frozen=True)
class AttentionRule:
    """``O = (M o a(S)) V`` with ``S = cap(scale Q K^T + B)``, hidden entries left out.

    Attributes:
        scale: What the products of queries and keys are multiplied by.
        causal: Whether a query sees no key behind its own position (counted from the first of each).
        window: How many keys a query sees on either side of its own position, or None for all.
        softcap: c of ``c tanh(S / c)``, or None.
        activation: The row function, or None for softmax.
        dropout: The share of weights set to zero; the others are divided by what remains.
        seed: Of the dropped weights, which every pass draws again.
        workspace: Bytes that scores and what is made of them may take at a time.
    """

    scale: float
    causal: bool = False
    window: tuple[int, int] | None = None
    softcap: float | None = None
    activation: Activation | None = None
    dropout: float = 0.0
    seed: int = 0
    workspace: int = 1 << 26

    def keys_seen(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """The range of keys that queries from `first` to before `last` can see at all.

        >>> AttentionRule(1.0, causal=True, window=(2, 0)).keys_seen(4, 6, 10)
        (2, 6)
        """
        start, stop = 0, keys
        if isinstance(self.activation, RowFunction):  # a user's function is given whole rows
            return start, stop
        if self.causal:
            stop = min(stop, last)
        if self.window is not None:
            start, stop = max(start, first - self.window[0]), min(stop, last + self.window[1])
        start = min(start, keys - 1)  # rows that see nothing keep one key, which is hidden
        return start, max(stop, start + 1)


_ROWS = 128
_TEMPORARIES = 6


@dataclass(frozen=True)
class AttentionOperands:
    """Queries, keys, values and what is added to scores or hides them, heads taken together.

    Attributes:
        q: Queries (n, g, L, e): n pairs of sequence and key head, g query heads for each of them.
        k: Keys (n, S, e).
        v: Values (n, S, f).
        bias: Numbers added to scores, (sequences, key heads, g, L, S) with sizes of one where they are shared, or None.
        visible: Which entries may be seen, of the same form, or None.
        heads: How many key heads a sequence has; n is sequences times these.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    visible: Tensor | None
    heads: int

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.q.device


@dataclass(frozen=True)
class Chunk:
    """Some pairs of sequence and head, rows and columns of their scores.

    Attributes:
        pairs: Which of the n pairs.
        rows: Which queries.
        columns: Which keys.
        heads: How many key heads a sequence has.
        index: The number of the chunk, for what is drawn at random.
    """

    pairs: slice
    rows: slice
    columns: slice
    heads: int
    index: int

    def of_queries(self, tensor: Tensor) -> Tensor:
        """The rows of a tensor (n, g, L, e), the g heads one below the other: (n, g r, e)."""
        return tensor[self.pairs, :, self.rows].flatten(1, 2)

    def of_keys(self, tensor: Tensor) -> Tensor:
        """The rows of a tensor (n, S, e) that are seen."""
        return tensor[self.pairs, self.columns]

    def of_scores(self, tensor: Tensor) -> Tensor:
        """The entries (pairs or 1, g or 1, r or 1, c or 1) of a tensor (sequences, heads, g, L, S)."""
        sequences, heads, _, length, keys = tensor.shape
        part = tensor if length == 1 else tensor[..., self.rows, :]
        part = part if keys == 1 else part[..., self.columns]
        if sequences == heads == 1:
            return part[0]
        return torch.stack([part[place] for place in self.places(sequences, heads)])

    def places(self, sequences: int, heads: int) -> list[tuple[int, int]]:
        """Where the pairs of this chunk stand in a tensor that has these many sequences and heads, or one for all."""
        pairs = range(self.pairs.start, self.pairs.stop)
        return [(p // self.heads if sequences > 1 else 0, p % self.heads if heads > 1 else 0) for p in pairs]


def chunks(operands: AttentionOperands, rule: AttentionRule) -> Iterator[Chunk]:
    """Pieces whose scores fit into the workspace, the last rows first: they see the most under a causal mask.

    On the meta device only the first two, of which the second is made while the first is still held: the others take
    no more memory, and there is nothing to compute.
    """
    n, g, length, _ = operands.q.shape
    keys = operands.k.shape[1]
    entry = operands.q.element_size() * _TEMPORARIES * max(keys, 1)
    fitting = max(rule.workspace // entry, 1)
    rows = max(min(_ROWS, length, fitting // g), 1)
    heads = max(min(n, fitting // (g * rows)), 1)
    index = 0
    for head in range(0, n, heads):
        for first in reversed(range(0, length, rows)):
            last = min(first + rows, length)
            seen = slice(*rule.keys_seen(first, last, keys))
            yield Chunk(slice(head, min(head + heads, n)), slice(first, last), seen, operands.heads, index)
            index += 1
            if operands.q.is_meta and index == 2:
                return


def masked_entries(chunk: Chunk, rule: AttentionRule, visible: Tensor | None, device: torch.device) -> Tensor | None:
    """Which entries (.., .., r, c) of a chunk are not seen; None if all of them are."""
    found = None if visible is None else ~chunk.of_scores(visible)
    if not rule.causal and rule.window is None:
        return found
    first, start = chunk.rows.start, chunk.columns.start
    if rule.window is None and chunk.columns.stop <= first + 1:
        return found
    row = torch.arange(first, chunk.rows.stop, device=device)[:, None]
    column = torch.arange(start, chunk.columns.stop, device=device)
    far = column > row if rule.causal else torch.zeros((), dtype=torch.bool, device=device)
    if rule.window is not None:
        left, right = rule.window
        far = far | (column < row - left) | (column > row + right)
    return far if found is None else found | far


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
        "attn_mask: got a mask that requires grad and a softcap, expected at most one of the two; detach the mask.",
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
