"""Where results of chunks are put together: rows of queries side by side, those of keys and biases summed.

On the meta device two chunks are run for all of them (`chunks`): their rows are replaced by two parts of the whole
tensor, which take as much memory as the rows of all chunks and are put together in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hessianlens.attention.sdpa.chunking import AttentionOperands, Chunk


class QueryRows:
    """A tensor (n, g, L, e) of which every chunk gives some rows."""

    def __init__(self, operands: AttentionOperands) -> None:
        self._pairs, self._groups, self._length, _ = operands.q.shape
        self._bands: dict[tuple[int, int], list[Tensor]] = {}

    def add(self, chunk: Chunk, rows: Tensor) -> None:
        """Rows (pairs, g r, e) of a chunk; chunks come with their last rows first."""
        if rows.is_meta and len(rows) * rows.shape[1] < self._pairs * self._groups * self._length:
            shapes = [(self._pairs, self._groups, length, rows.shape[-1]) for length in (1, self._length - 1)]
            self._bands[0, self._pairs] = [rows.new_empty(shape) for shape in shapes]
            return
        band = self._bands.setdefault((chunk.pairs.start, chunk.pairs.stop), [])
        band.append(rows.unflatten(1, (self._groups, -1)))

    def whole(self) -> Tensor:
        """All rows."""
        bands = [torch.cat(rows[::-1], 2) if len(rows) > 1 else rows[0] for rows in self._bands.values()]
        return torch.cat(bands) if len(bands) > 1 else bands[0]


class KeyRows:
    """A tensor (n, S, e) to which every chunk adds at the keys that it sees."""

    def __init__(self, operands: AttentionOperands) -> None:
        self._pairs, self._keys, _ = operands.k.shape
        self._bands: dict[tuple[int, int], Tensor] = {}

    def add(self, chunk: Chunk, rows: Tensor) -> None:
        """Adds rows (pairs, c, e)."""
        pairs = (chunk.pairs.start, chunk.pairs.stop)
        if rows.is_meta and len(rows) < self._pairs:
            for first, last in ((0, 1), (1, self._pairs)):
                self._bands[first, last] = rows.new_empty(last - first, self._keys, rows.shape[-1])
        elif pairs in self._bands:
            self._bands[pairs][:, chunk.columns] += rows
        else:
            around = (0, 0, chunk.columns.start, self._keys - chunk.columns.stop)
            self._bands[pairs] = F.pad(rows, around) if any(around) else rows

    def whole(self) -> Tensor:
        """The sum."""
        bands = list(self._bands.values())
        return torch.cat(bands) if len(bands) > 1 else bands[0]


class BiasEntries:
    """What scores give to a bias that is shared along the axes where its size is one."""

    def __init__(self, operands: AttentionOperands) -> None:
        assert operands.bias is not None
        self._shape, self._groups = operands.bias.shape, operands.q.shape[1]
        self._sum: Tensor | None = None

    def add(self, chunk: Chunk, scores: Tensor) -> None:
        """Adds entries (pairs, g r, c)."""
        if self._sum is None:
            self._sum = scores.new_zeros(self._shape)
        sequences, heads, groups, length, keys = self._shape
        part = scores.unflatten(1, (self._groups, -1))
        shared = [axis for axis, size in ((1, groups), (2, length), (3, keys)) if size == 1]
        part = part.sum(shared, keepdim=True) if shared else part
        rows = slice(None) if length == 1 else chunk.rows
        columns = slice(None) if keys == 1 else chunk.columns
        for entry, (sequence, head) in zip(part.unbind(), chunk.places(sequences, heads), strict=True):
            self._sum[sequence, head, :, rows, columns] += entry

    def whole(self) -> Tensor:
        """The sum."""
        assert self._sum is not None
        return self._sum


class AttentionGradients:
    """Gradients with respect to queries, keys, values and bias, of which some are wanted."""

    def __init__(self, operands: AttentionOperands, wanted: Sequence[bool]) -> None:
        self.wanted = wanted
        self.needs_scores = wanted[0] or wanted[1] or wanted[3]
        self.queries, self.keys, self.values = QueryRows(operands), KeyRows(operands), KeyRows(operands)
        self.bias = BiasEntries(operands) if wanted[3] else None

    def add_scores(self, chunk: Chunk, scores: Tensor, queries: Tensor | None) -> None:
        """The gradient with respect to scores, for the bias, and what follows from it for queries."""
        if self.bias is not None:
            self.bias.add(chunk, scores)
        if queries is not None:
            self.queries.add(chunk, queries)

    def whole(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """The four, None where not wanted."""
        parts = (self.queries, self.keys, self.values, self.bias)
        q, k, v, b = (part.whole() if want and part else None for part, want in zip(parts, self.wanted, strict=True))
        return q, k, v, b
