"""Data that several processes measure a model on: each takes its share of the sequences."""

from __future__ import annotations

from collections.abc import Sequence

from hessianlens.problems import Batch, batch_size, narrowed


def share_of(batches: Sequence[Batch], rank: int, size: int) -> list[Batch]:
    """The sequences of one of several processes: stretches of equal length, the first ones longer by one if needed.

    Args:
        batches: All of the data.
        rank: The number of the process.
        size: How many there are.

    >>> import torch
    >>> [[batch.tolist() for batch in share_of([torch.arange(3), torch.arange(3, 5)], rank, 2)] for rank in (0, 1)]
    [[[0, 1, 2]], [[3, 4]]]
    """
    total, found, before = sum(map(batch_size, batches)), [], 0
    each, more = divmod(total, size)
    start = rank * each + min(rank, more)
    stop = start + each + (rank < more)
    for batch in batches:
        count = batch_size(batch)
        first, last = max(start - before, 0), min(stop - before, count)
        if first < last:
            found.append(batch if last - first == count else narrowed(batch, first, last))
        before += count
    return found
