"""What tasks share that predict some tokens from those before them: the loss, and what counts as right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessianlens.checks import check_dense
from hessianlens.errors import InputError, expect
from hessianlens.tasks.stream import Batch


class NextTokenTask(ABC):
    """Position p predicts token p + 1, at some positions p of every sequence."""

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of tokens."""

    @property
    @abstractmethod
    def context(self) -> int:
        """Length L of a sequence."""

    @property
    @abstractmethod
    def loss_positions(self) -> Sequence[int]:
        """Positions whose logits enter the loss, in order."""

    def cross_entropy(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> Float[Tensor, ""]:
        """``-mean log softmax(logits_p)[token_{p+1}]`` over the batch and `loss_positions`, in nats."""
        predictions, targets = self._pairs(logits, batch)
        return torch.nn.functional.cross_entropy(predictions.flatten(0, -2), targets.flatten())

    def correct(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> Bool[Tensor, "*b p"]:
        """Whether the likeliest token of each of these positions, given the true ones before it, is the next one."""
        predictions, targets = self._pairs(logits, batch)
        return predictions.argmax(-1) == targets

    def accuracy(self, logits: Float[Tensor, "*b l v"], batch: Batch | Int[Tensor, "*b l"]) -> float:
        """Share of the predicted tokens that are right."""
        return float(self.correct(logits, batch).double().mean())

    def _pairs(self, logits: Tensor, batch: Batch | Tensor) -> tuple[Tensor, Tensor]:
        """Logits and the tokens they are to predict."""
        tokens = batch_tokens(batch)
        check_dense("logits", logits)
        expect(
            tokens.shape[-1] == self.context and logits.shape[:-1] == tokens.shape and logits.shape[-1] >= self.vocab,
            f"logits and batch: got shapes {tuple(logits.shape)} and {tuple(tokens.shape)}, expected sequences of "
            f"{self.context} tokens and {self.vocab} logits for each.",
        )
        # slices, not lists of positions, where they will do: less is copied
        positions = self.loss_positions
        if isinstance(positions, range):
            start, stop, stride = positions.start, positions.stop, positions.step
            return logits[..., start:stop:stride, :], tokens[..., start + 1 : stop + 1 : stride]
        chosen = list(positions)
        return logits[..., chosen, :], tokens[..., [p + 1 for p in chosen]]


def batch_tokens(batch: Tensor | Mapping[str, Tensor]) -> Tensor:
    """The tokens of a batch, given as a mapping or as the tensor itself."""
    found = batch.get("tokens") if isinstance(batch, Mapping) else batch
    if not isinstance(found, Tensor):
        raise InputError(f"batch: got {type(batch).__name__}, expected {{'tokens': tensor}} or a tensor.")
    return check_dense("tokens", found)
