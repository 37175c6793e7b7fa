"""A large matrix as a small picture: the largest entry of each tile, tiles never crossing a block's border."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PooledMap:
    """The picture of a matrix.

    Attributes:
        logs: log10 of the largest absolute entry of each tile, float32; minus infinity where all entries are zero.
        sizes: Tiles of each block along one side.
        tile: Entries along one side of a tile; 1 if nothing was pooled.
    """

    logs: np.ndarray
    sizes: np.ndarray
    tile: int


def pooled_map(matrix: Tensor, sizes: Sequence[int], pixels: int) -> PooledMap:
    """Pool a square matrix of blocks of the given sizes to about `pixels` tiles a side.

    >>> import torch
    >>> pooled_map(torch.eye(4), [3, 1], pixels=2).logs
    array([[  0., -inf, -inf],
           [-inf,   0., -inf],
           [-inf, -inf,   0.]], dtype=float32)
    """
    tile = max(1, -(-len(matrix) // pixels))
    ends = np.cumsum(sizes)
    starts = [np.arange(end - size, end, tile) for end, size in zip(ends, sizes, strict=True)]
    at = np.concatenate(starts)
    largest = np.maximum.reduceat(np.maximum.reduceat(matrix.abs().numpy(), at, axis=0), at, axis=1)
    with np.errstate(divide="ignore"):
        logs = np.log10(largest).astype(np.float32)
    return PooledMap(logs, np.array([len(s) for s in starts]), tile)
