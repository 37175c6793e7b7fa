"""Tasks to measure curvature on, and to train on: data, losses and what counts as right."""

from hessianlens.tasks.addition import Addition
from hessianlens.tasks.characters import Characters
from hessianlens.tasks.recall import AssociativeRecall
from hessianlens.tasks.stream import Batch, BatchStream

__all__ = ["Addition", "AssociativeRecall", "Batch", "BatchStream", "Characters"]
