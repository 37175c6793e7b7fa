"""A problem as its user wrote it: uncut batches, materialised logits, plain attention, the user's loss.

A problem may compute the same loss in another way: in micro-batches, with logits and attention in chunks. What it
would be without any of that is carried along here, so that every number can be compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.problems.batch import Batch, move, pieces


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
