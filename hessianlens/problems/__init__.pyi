"""The names of this package and the files they come from."""

from .batch import Batch, batch_size, mapped, move, pieces, tensors
from .block import Block
from .problem import BatchLoss, Forward, Problem
from .selection import matches

__all__ = [
    "Batch",
    "BatchLoss",
    "Block",
    "Forward",
    "Problem",
    "batch_size",
    "mapped",
    "matches",
    "move",
    "pieces",
    "tensors",
]
