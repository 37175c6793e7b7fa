"""Attention in pieces: some heads, some rows of queries, and the keys that these can see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.sdpa.settings import AttentionRule

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
