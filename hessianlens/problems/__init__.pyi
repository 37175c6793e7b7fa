"""The names of this package and the files they come from."""

from .batch import Batch, move, rebuilt, tensors
from .block import Block
from .problem import BatchLoss, Forward, Problem, check_problem
from .selection import matches

__all__ = [
    "Batch",
    "BatchLoss",
    "Block",
    "Forward",
    "Problem",
    "check_problem",
    "matches",
    "move",
    "rebuilt",
    "tensors",
]
