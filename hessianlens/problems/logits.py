"""Logits that are a linear map of features and are not materialised where the loss is a cross-entropy of classes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hessianlens.problems.batch import Batch


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
