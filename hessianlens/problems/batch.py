"""Batches of any nesting: their tensors, moved, cut or rebuilt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Logits:
    """``z = cap(s (H W^T + b))``, by its factors.

    Attributes:
        hidden: H, (..., d).
        weight: W, (V, d).
        bias: b, (V,), or None.
        scale: s.
        softcap: c, where ``cap(z) = c tanh(z / c)``; None for no cap.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None


@dataclass(frozen=True, eq=False)
class Classes:
    """A batch's share of a loss as ``factor`` times the sum of cross-entropies of some targets.

    Attributes:
        targets: A class for every position of the outputs.
        factor: What the sum is multiplied by.
        ignore_index: The target of positions without a loss.
        smoothing: The share of a target that is spread over all classes.
        weight: How much each class counts; None where all count alike.
    """

    targets: Tensor
    factor: float
    ignore_index: int = -100
    smoothing: float = 0.0
    weight: Tensor | None = None


class LogitsForward(ABC):
    """A forward pass that can end in front of its last linear map."""

    @abstractmethod
    def __call__(self, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The outputs."""

    @abstractmethod
    def logits(self, params: Mapping[str, Tensor], batch: Batch) -> Logits:
        """The same by their factors."""


class ClassesLoss(ABC):
    """A loss that is a cross-entropy of classes, position by position."""

    @abstractmethod
    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        """A batch's share of the loss."""

    @abstractmethod
    def classes(self, batch: Batch) -> Classes:
        """The same by its targets."""

    @abstractmethod
    def of_logits(self, logits: Logits, batch: Batch) -> Tensor:
        """The same without outputs."""


@dataclass(frozen=True, eq=False)
class ReferenceComputation:
    """Forward pass, loss and scope of a problem as its user wrote it.

    Attributes:
        forward: Parameters and a batch to materialised outputs.
        loss: Outputs and an uncut batch to this batch's share of the total loss, by plain operations of PyTorch.
        scope: Context in which `forward` must run: attention by PyTorch's plain kernel.
        instead_of: The forward pass and the loss that a problem has in their place. A problem with another one is a
            different function, about which this says nothing.
        additive: Whether the loss is known to be a sum over the sequences of a batch, whatever the outputs are.
    """

    forward: Callable[[Mapping[str, Tensor], Batch], Tensor]
    loss: Callable[[Tensor, Batch], Tensor]
    scope: Callable[[], AbstractContextManager[object]]
    instead_of: tuple[object, object]
    additive: bool = False


class CutBatches(list[Batch]):
    """Batches cut into micro-batches of at most `size` sequences; the uncut batches are kept beside them.

    The pieces are views of the uncut batches. A list that somebody makes of them is a plain list, which knows of no
    uncut batches.

    Args:
        uncut: The batches as the user gave them; if they are cut already, what they were cut from.
        size: The largest number of sequences of a piece.

    >>> data = CutBatches([torch.zeros(5, 2), torch.zeros(2, 2)], 2)
    >>> [len(piece) for piece in data], [len(batch) for batch in data.uncut]
    ([2, 2, 1, 2], [5, 2])
    """

    def __init__(self, uncut: Iterable[Batch], size: int) -> None:
        self.uncut: tuple[Batch, ...] = uncut.uncut if isinstance(uncut, CutBatches) else tuple(uncut)
        self.size: int = min(size, uncut.size) if isinstance(uncut, CutBatches) else size
        super().__init__(piece for batch in self.uncut for piece in pieces(batch, self.size))

    def moved(self, dtype: torch.dtype | None, device: torch.device | str | None) -> CutBatches:
        """The same pieces with floating tensors in another dtype and all tensors on another device."""
        return CutBatches([move(batch, dtype, device) for batch in self.uncut], self.size)


def uncut_batches(data: Iterable[Batch]) -> list[Batch]:
    """The batches that some data were cut from; data that were not cut, as they are.

    >>> [len(batch) for batch in uncut_batches(CutBatches([torch.zeros(5, 2)], 2))]
    [5]
    """
    return list(data.uncut if isinstance(data, CutBatches) else data)
