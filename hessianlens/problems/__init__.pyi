"""The names of this package and the files they come from."""

from .batch import Batch, batch_size, mapped, move, narrowed, pieces, tensors
from .block import Block, layer_groups, layer_of
from .logits import Classes, ClassesLoss, Logits, LogitsForward
from .problem import BatchLoss, Forward, Problem, check_problem
from .selection import matches
from .written import CutBatches, Written, uncut_batches

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
    "Written",
    "batch_size",
    "check_problem",
    "layer_groups",
    "layer_of",
    "mapped",
    "matches",
    "move",
    "narrowed",
    "pieces",
    "tensors",
    "uncut_batches",
]
