"""Batches of any nesting: their tensors, moved or rebuilt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = Any


def move(batch: Batch, dtype: torch.dtype | None, device: torch.device | str | None) -> Batch:
    """A batch with its floating tensors in another dtype and all of its tensors on another device."""
    if isinstance(batch, Tensor):
        return batch.to(device=device, dtype=dtype if batch.is_floating_point() else None)
    if isinstance(batch, Mapping):
        return {key: move(value, dtype, device) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        return rebuilt(batch, [move(value, dtype, device) for value in batch])
    return batch


def rebuilt(like: tuple[Any, ...] | list[Any], values: list[Any]) -> Batch:
    """A tuple or list of the same kind, named tuples included, with other values."""
    make = getattr(type(like), "_make", type(like))
    return make(values)


def tensors(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of a batch."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors(value)
