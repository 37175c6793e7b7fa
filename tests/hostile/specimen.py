"""A model of a user's with its data and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Loss = str | Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True, eq=False)
class Specimen:
    """What a user hands to `hessianlens.problem`.

    Attributes:
        model: The model, in float64.
        data: Batches of inputs and targets.
        loss: "cross_entropy", "square", or a function of outputs and batch; the mean over everything.
        options: Further arguments of `hessianlens.problem`.
        traits: What the model does, for reports.
    """

    model: nn.Module
    data: list[Batch]
    loss: Loss = "square"
    options: Mapping[str, Any] = field(default_factory=dict)
    traits: tuple[str, ...] = ()


def randn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """The same numbers on every machine."""
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_random_weights(model: nn.Module, seed: int = 0, scale: float = 0.6) -> nn.Module:
    """The model in float64, its parameters drawn anew: biases and gains are not left at zero and one."""
    model = model.double().eval()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=1000 * seed + number, scale=scale))
    return model


def regression(model: nn.Module, *, features: int = 3, tokens: int = 4, sequences: int = 2, seed: int = 0) -> Specimen:
    """A model with random weights on random tokens, and a square loss whose targets have the shape of its outputs."""
    with_random_weights(model, seed)
    x = randn(sequences, tokens, features, seed=seed + 7)
    with torch.no_grad():
        out = model(x)
    return Specimen(model, [(x, randn(*out.shape, seed=seed + 8))])
