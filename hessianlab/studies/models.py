"""What the arms of a training study train: a task with its data, and the model of an arm."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessianlab.results import Parameters
from hessianlab.studies.training_study import DOCUMENTATION, text_digest
from hessianlens.errors import expect
from hessianlens.models import Transformer
from hessianlens.tasks import Addition, AssociativeRecall, Characters

Task: TypeAlias = Addition | AssociativeRecall | Characters

VALIDATION_SEED = 77_777_777
"""Far from the seeds of trainings."""


class TaskData:
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
    if asked["text"] == DOCUMENTATION:
        return Characters.from_file(Path(__file__).parent / "documentation.txt", asked["length"])
    expect(text_digest(asked["text"]) == asked["text_digest"], "text: the file has changed since the run began.")
    return Characters.from_file(asked["text"], asked["length"])


def build(parameters: Parameters, learned: TaskData, seed: int) -> nn.Module:
    """The model; arms that only differ in how it is written begin as the same function."""
    asked: Any = parameters
    dual = _rescaled(_transformer(asked, learned, seed, "dual"), asked["query_key_scale"], asked["embedding_scale"])
    if asked["query_key"] == "single":
        return multiplied(dual, _transformer(asked, learned, seed, "single"))
    return dual if asked["redundant"] == "none" else WithGain(dual, asked["redundant"])


def _rescaled(model: Transformer, query_key: float, embedding: float) -> Transformer:
    """The same draw of weights with W_Q and W_K, and the embeddings, times a factor each."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("W_Q", "W_K")):
                parameter.mul_(query_key)
            elif "embedding" in name:
                parameter.mul_(embedding)
    return model


def _transformer(asked: Any, learned: TaskData, seed: int, query_key: str) -> Transformer:
    width = asked["d_model"] // asked["heads"]
    unscaled = 1.0 if asked["scaled"] else 1 / math.sqrt(width)
    if asked["temperature"] == "length":
        unscaled *= learned.task.context
    return Transformer(
        asked["layers"],
        asked["d_model"],
        asked["heads"],
        vocab=learned.task.vocab,
        context=learned.task.context,
        attention=asked["attention"],
        norm=asked["norm"],
        seed=seed,
        query_key=query_key,
        # the scores of one matrix are divided by nothing else
        temperature=unscaled if query_key == "dual" else 1.0,
        attention_bias=False,
    )


def multiplied(dual: Transformer, single: Transformer) -> Transformer:
    """`single` as the same function as `dual`: ``W_QK = W_Q W_K^T / scale``, all other weights equal."""
    with torch.no_grad():
        ours = dict(single.named_parameters())
        for name, parameter in dual.named_parameters():
            if name in ours:
                ours[name].copy_(parameter)
        for here, there in zip(single.blocks, dual.blocks, strict=True):
            one, two = cast(Any, here).attention, cast(Any, there).attention
            pairs = zip(two.W_Q.chunk(two.heads, 1), two.W_K.chunk(two.heads, 1), strict=True)
            one.W_QK.copy_(torch.cat([q @ k.T / two.scale for q, k in pairs], 1))
    return single


class WithGain(nn.Module):
    """A Transformer with a learned factor per head and layer that adds no function: it could be taken into a weight.

    ``"temperature"``: scores of head h over ``exp(g_h)``, that is W_Q times ``exp(-g_h)``. ``"value gain"``: values
    times ``exp(-g_h)``. Both begin at g = 0. The second is the control of the first: as many parameters more, as
    redundant, and nothing to do with how sharp attention is.

    >>> model = WithGain(Transformer(1, 4, heads=2, attention_bias=False), "temperature")
    >>> model.log_gain.shape, model(torch.zeros(1, 3, dtype=torch.int64)).shape
    (torch.Size([1, 2]), torch.Size([1, 3, 12]))
    """

    def __init__(self, model: Transformer, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind
        heads = cast(Any, model.blocks[0]).attention.heads
        self.log_gain = nn.Parameter(torch.zeros(len(model.blocks), heads, dtype=model.W_U.dtype))

    @property
    def blocks(self) -> nn.ModuleList:
        """Of the Transformer inside."""
        return self.model.blocks

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        return cast(Tensor, functional_call(self.model, self.effective(), (tokens,)))

    def effective(self) -> dict[str, Tensor]:
        """The weights that the factors change, with them."""
        which = "W_Q" if self.kind == "temperature" else "W_V"
        found = {}
        for layer, block in enumerate(self.model.blocks):
            weight = getattr(cast(Any, block).attention, which)
            gain = torch.exp(-self.log_gain[layer])[:, None].expand(-1, weight.shape[1] // self.log_gain.shape[1])
            found[f"blocks.{layer}.attention.{which}"] = weight * gain.flatten()
        return found
