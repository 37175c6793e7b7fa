"""Batches of any nesting: their tensors, moved, cut or rebuilt."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hessianlens.errors import InputError

Batch = Any


def move(batch: Batch, dtype: torch.dtype | None, device: torch.device | str | None) -> Batch:
    """A batch with its floating tensors in another dtype and all of its tensors on another device."""
    return map_tensors(
        lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None), batch
    )


def batch_size(batch: Batch) -> int:
    """Number of sequences: the first axis of the first tensor."""
    first = next(iter(tensors(batch)), None)
    if first is None or first.ndim == 0:
        raise InputError("data: got a batch without any tensor, expected inputs with a batch axis.")
    return first.shape[0]


def pieces(batch: Batch, size: int) -> Iterator[Batch]:
    """A batch cut along its first axis into pieces of at most `size` sequences; what has no such axis stays whole."""
    for start in range(0, batch_size(batch), size):
        yield narrow_batch(batch, start, start + size)


def narrow_batch(batch: Batch, start: int, stop: int) -> Batch:
    """The sequences `start` to `stop` of a batch; what has no axis of sequences stays whole.

    >>> narrow_batch((torch.arange(4), torch.ones(1)), 1, 3)
    (tensor([1, 2]), tensor([1.]))
    """
    total = batch_size(batch)

    def cut(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0 or tensor.shape[0] != total:
            return tensor
        if tensor.layout != torch.strided:
            raise InputError(
                f"data: got a sparse tensor of shape {tuple(tensor.shape)}, which cannot be cut into smaller batches; "
                "give smaller ones, or make it dense with .to_dense()."
            )
        return tensor[start:stop]

    return map_tensors(cut, batch)


def map_tensors(function: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """A batch with a function applied to each of its tensors.

    >>> map_tensors(torch.neg, {"a": (torch.ones(1), "name")})
    {'a': (tensor([-1.]), 'name')}
    """
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(function, value) for key, value in batch.items()}
    if isinstance(batch, (tuple, list)):
        make = getattr(type(batch), "_make", type(batch))  # named tuples
        return make([map_tensors(function, value) for value in batch])
    return batch


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
