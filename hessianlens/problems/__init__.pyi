"""The names of this package and the files they come from."""

from .batch import (
    Batch,
    Classes,
    ClassesLoss,
    CutBatches,
    Logits,
    LogitsForward,
    ReferenceComputation,
    batch_size,
    map_tensors,
    move,
    narrow_batch,
    pieces,
    tensors,
    uncut_batches,
)
from .block import Block, layer_groups, layer_of
from .model_check import ModelCheck
from .problem import BatchLoss, Forward, Problem, check_problem
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
    "ModelCheck",
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
