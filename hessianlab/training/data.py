"""What the members of an ensemble learn from: a stream for every seed, the same for all members of that seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

Draw = Callable[[int, int], Tensor]
"""Number of sequences and seed to tokens (n, L)."""

_CHUNK = 50
"""Steps whose data are drawn at once; drawing a batch takes as long as drawing fifty."""

_STRIDE = 1_000_003
"""Between the seeds of two members' streams, so that no chunk of one is a chunk of another."""


class TrainingData:
    """Batches for every member, step by step; members with the same seed see the same sequences.

    Args:
        draw: Draws sequences from a seed.
        seeds: One a member.
        batch: Sequences a member and step.

    >>> data = TrainingData(lambda n, seed: torch.full((n, 3), seed % 7), [0, 1, 0], batch=2)
    >>> data.at(0).shape, bool((data.at(0)[0] == data.at(0)[2]).all())
    (torch.Size([3, 2, 3]), True)
    """

    def __init__(self, draw: Draw, seeds: Sequence[int], batch: int) -> None:
        self._draw, self._batch = draw, batch
        self._seeds = sorted(set(seeds))
        self._place = torch.tensor([self._seeds.index(seed) for seed in seeds])
        self._chunk: tuple[int, Tensor] | None = None

    def at(self, step: int) -> Int[Tensor, "m b l"]:
        """The batches of a step; steps are asked for in order, or anew from the beginning."""
        number, place = divmod(step, _CHUNK)
        if self._chunk is None or self._chunk[0] != number:
            drawn = [self._draw(_CHUNK * self._batch, _STRIDE * seed + number) for seed in self._seeds]
            self._chunk = number, torch.stack(drawn).unflatten(1, (_CHUNK, self._batch))
        return self._chunk[1][:, place][self._place]
