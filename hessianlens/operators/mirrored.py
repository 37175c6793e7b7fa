"""The transpose of a matrix, written beside it."""

from __future__ import annotations

from torch import Tensor

_ROWS, _COLUMNS = 256, 2048
"""Of a tile: a column of it stays in the fastest cache while its neighbours are read."""
_PADDING = 8
"""Numbers between rows of a tile: lengths that are powers of two would put a column in one place of the cache."""


def write_transposed(source: Tensor, target: Tensor) -> None:
    """``target = source'``, by tiles: reading columns of a large matrix one after the other would miss every cache.

    >>> import torch
    >>> target = torch.empty(2, 3)
    >>> write_transposed(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), target)
    >>> target.tolist()
    [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]]
    """
    if source.device.type != "cpu":
        target.copy_(source.T)
        return
    height, width = source.shape
    rows, columns = min(height, _ROWS), min(width, _COLUMNS)
    tile = source.new_empty(rows, columns + _PADDING)[:, :columns]
    if (rows, columns) == (height, width):
        target.copy_(tile.copy_(source).T)
        return
    for r in range(0, height, rows):
        for c in range(0, width, columns):
            part = source[r : r + rows, c : c + columns]
            own = tile[: part.shape[0], : part.shape[1]].copy_(part)
            target[c : c + columns, r : r + rows].copy_(own.T)
