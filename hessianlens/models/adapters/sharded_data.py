"""A problem whose data several processes hold: each its share, some of them none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from hessianlens.distributed import Ranks
from hessianlens.distributed.all_reduce import checksum
from hessianlens.errors import InputError, expect
from hessianlens.models.adapters.batches import as_batches, is_batch
from hessianlens.problems import Batch, batch_size, map_tensors, move, pieces
from hessianlens.sizes import number_of


def own_batches(data: object, ranks: Ranks) -> list[Batch]:
    """The batches of this process, as `as_batches` makes them; none where others have some.

    Args:
        data: What this process was given: also None, an empty list or batches without a sequence.
        ranks: The processes that share the data.
    """
    if ranks.size == 1:
        return as_batches(data)
    if data is None or (is_batch(data) and _empty(data)):
        return []
    if is_batch(data) or not isinstance(data, Iterable):
        return as_batches(data)
    listed = [batch for batch in data if not (is_batch(batch) and _empty(batch))]
    return as_batches(listed) if listed else []


def _empty(batch: Batch) -> bool:
    try:
        return batch_size(batch) == 0
    except InputError:  # a batch without tensors says so by itself
        return False


def typical_batches(
    batches: list[Batch], ranks: Ranks, device: torch.device
) -> tuple[Sequence[Batch], tuple[str, ...]]:
    """Batches that show what the data is like, and what is to be noted: a process without data gets one sequence.

    Args:
        batches: Those of this process.
        ranks: The processes that share the data.
        device: Where the data of this process is.
    """
    if ranks.size == 1:
        return batches, ()
    counts = ranks.all_gather("sequences", lambda: sum(map(batch_size, batches)))
    expect(any(counts), f"data: got no sequence at all on any of {ranks.size} ranks, expected some.")
    note = (f"{number_of(sum(counts), 'sequence')} on {ranks.size} ranks: {', '.join(map(str, counts))}",)
    if all(counts):
        return batches, note
    owner = next(rank for rank, count in enumerate(counts) if count)
    found = ranks.all_gather("a sequence", lambda: _one(batches[0]) if ranks.rank == owner else None)[owner]
    return batches or [move(found, None, device)], note


def _one(batch: Batch) -> Batch:
    """The first sequence of a batch, to be sent; the batch, if it cannot be cut."""
    with suppress(InputError):
        batch = next(pieces(batch, 1))
    return map_tensors(lambda tensor: tensor.cpu().clone(), batch)


def expect_same_weights(params: Mapping[str, Tensor], ranks: Ranks) -> None:
    """All processes have the same model: names, shapes, numbers."""
    if ranks.size == 1:
        return
    everyone = ranks.all_gather("weights", lambda: {name: checksum([tensor]) for name, tensor in params.items()})
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            different = [name for name in {**everyone[0], **other} if other.get(name) != everyone[0].get(name)]
            raise InputError(
                f"model: rank {rank} and rank 0 differ in {len(different)} of their parameters or buffers, such as "
                f"{different[0]}; expected the same weights on every rank: seed them alike, or broadcast them "
                "as DistributedDataParallel does."
            )
