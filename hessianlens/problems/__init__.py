"""The waist of everything matrix-free: a `Problem` is a model, a loss, data and named blocks of parameters, frozen."""

from hessianlens.problems.batch import Batch, batch_size, mapped, move, pieces, tensors
from hessianlens.problems.block import Block
from hessianlens.problems.problem import BatchLoss, Forward, Problem
from hessianlens.problems.selection import matches

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
