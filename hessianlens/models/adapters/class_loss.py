"""Cross-entropy of classes as a loss of outputs, and of what outputs would be formed of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.errors import expect
from hessianlens.losses import linear_cross_entropy
from hessianlens.problems import Batch, BatchLoss, Classes, ClassesLoss, Logits


@dataclass(frozen=True, eq=False)
class ClassLoss(ClassesLoss):
    """A batch's share of the total loss, a multiple of the sum over its targets.

    Attributes:
        share: The same as a function of outputs and batch.
        targets: From a batch to a class for every position of the outputs.
        factor: What the sum is multiplied by.
        ignore_index: The target of positions without a loss.
        smoothing: The share of a target that is spread over all classes.
        weight: How much each class counts.
    """

    share: BatchLoss
    targets: Callable[[Batch], Tensor]
    factor: float
    ignore_index: int
    smoothing: float = 0.0
    weight: Tensor | None = None

    def __call__(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The share of a batch."""
        return self.share(outputs, batch)

    def classes(self, batch: Batch) -> Classes:
        """The share by its targets."""
        return Classes(self.targets(batch).long(), self.factor, self.ignore_index, self.smoothing, self.weight)

    def of_logits(self, logits: Logits, batch: Batch) -> Tensor:
        """The share, without outputs."""
        found = self.classes(batch)
        positions = tuple(logits.hidden.shape[:-1])
        expect(
            tuple(found.targets.shape) == positions,
            f"targets: got shape {tuple(found.targets.shape)}, expected {positions}, a class a position.",
        )
        total = linear_cross_entropy(
            logits.hidden,
            logits.weight,
            found.targets,
            linear_bias=logits.bias,
            weight=None if found.weight is None else found.weight.to(logits.weight),
            reduction="sum",
            ignore_index=found.ignore_index,
            label_smoothing=found.smoothing,
            scale=logits.scale,
            softcap=logits.softcap,
        )
        return total * found.factor


def next_ones(targets: Tensor, ignore_index: int) -> Tensor:
    """For every position the target of the next one; the last has none.

    >>> next_ones(torch.tensor([[3, 4, 5]]), -100)
    tensor([[   4,    5, -100]])
    """
    return torch.cat([targets[:, 1:], targets.new_full((len(targets), 1), ignore_index)], 1)
