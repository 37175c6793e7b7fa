"""The names of this package and the files they come from."""

from .batch import Batch, batch_size, map_tensors, move, narrow_batch, pieces, tensors
from .block import Block, layer_groups, layer_of
from .logits import Classes, ClassesLoss, Logits, LogitsForward
from .problem import BatchLoss, Forward, Problem, check_problem
from .reference_computation import CutBatches, ReferenceComputation, uncut_batches
from .selection import matches

__all__ = [
    "Batch",
    "BatchLoss",
    "Block",
    "Classes",
    "ClassesLoss",
    "CutBatches",
    "Forward",
    "Logits",
    "LogitsForward",
    "Problem",
    "ReferenceComputation",
    "batch_size",
    "check_problem",
    "layer_groups",
    "layer_of",
    "map_tensors",
    "matches",
    "move",
    "narrow_batch",
    "pieces",
    "tensors",
    "uncut_batches",
]
