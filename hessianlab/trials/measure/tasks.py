"""What a trial learns."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor, nn

from hessianlab.results import Parameters
from hessianlab.trials.measure.config import text_digest
from hessianlens.errors import expect
from hessianlens.tasks import Addition, AssociativeRecall, Characters

Task: TypeAlias = Addition | AssociativeRecall | Characters

VALIDATION_SEED = 77_777_777
"""Far from the seeds of trainings."""


class Learned:
    """A task as trials use it: training data by seed, one validation batch, the loss, and what counts as right."""

    def __init__(self, parameters: Parameters) -> None:
        asked: Any = parameters
        self.name = str(asked["task"])
        self.task: Task = _task(asked)
        self.validation = self._batch(asked["validation"], VALIDATION_SEED, held_out=True)

    def draw(self, size: int, seed: int) -> Tensor:
        """Training sequences."""
        return self._batch(size, seed, held_out=False)

    def _batch(self, size: int, seed: int, held_out: bool) -> Tensor:
        if isinstance(self.task, Characters):
            return self.task.batch(size, seed, "validation" if held_out else "train")["tokens"]
        if isinstance(self.task, Addition):
            return self.task.batch(size, seed, "mixed")["tokens"]
        return self.task.batch(size, seed)["tokens"]

    def loss(self, model: nn.Module, tokens: Tensor) -> Tensor:
        """Cross-entropy of one model."""
        return self.task.cross_entropy(model(tokens), tokens)

    def right(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Share of sequences (addition) or tokens that are right."""
        return self.task.correct(logits, tokens).to(logits.dtype).mean()


def _task(asked: Any) -> Task:
    if asked["task"] == "addition":
        return Addition(asked["digits"])
    if asked["task"] == "recall":
        pairs = asked["pairs"]
        return AssociativeRecall(pairs=pairs, queries=max(1, pairs // 2), keys=pairs + 2, values=pairs + 2)
    if not asked["text"]:
        return Characters.generated(length=asked["length"])
    expect(text_digest(asked["text"]) == asked["text_digest"], "text: the file has changed since the run began.")
    return Characters.from_file(asked["text"], asked["length"])
