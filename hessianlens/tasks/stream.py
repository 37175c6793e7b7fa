"""Batches one after another, the same ones every time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hessianlens.errors import check_function, check_seed, check_whole
from hessianlens.failures import failures_as_input_errors

Batch = dict[str, Tensor]
"""A batch: ``{"tokens": (B, L) int64}``, so that ``model(**batch)`` works."""


@dataclass(frozen=True)
class BatchStream:
    """`count` batches drawn one after another from a generator with this seed; drawn anew, alike, at every iteration.

    >>> stream = BatchStream(2, 0, lambda source: {"tokens": torch.randint(9, (1, 3), generator=source)})
    >>> len(stream), [b["tokens"].tolist() for b in stream] == [b["tokens"].tolist() for b in stream]
    (2, True)
    """

    count: int
    seed: int
    draw: Callable[[torch.Generator], Batch] = field(repr=False)

    def __post_init__(self) -> None:
        """A number of batches, a seed and a function that draws one."""
        check_whole("count", self.count, 0, sys.maxsize)  # what len() can say
        check_seed(self.seed)
        check_function("draw", self.draw, "a function of a generator that gives a batch")

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Batch]:
        source = torch.Generator().manual_seed(int(self.seed))
        for _ in range(self.count):
            with failures_as_input_errors("draw: it failed", "it was given a torch.Generator"):
                batch = self.draw(source)
            yield batch
