"""Tasks to measure curvature on: data, losses and what counts as right."""

from hessianlens.tasks.addition import Addition
from hessianlens.tasks.stream import Batch, BatchStream

__all__ = ["Addition", "Batch", "BatchStream"]
