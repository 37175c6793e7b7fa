"""What enters a module of a running model, and the model's outputs with the module's output replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessianlens.models.adapters.outputs import as_tensor
from hessianlens.models.adapters.precision import in_precision_of


@dataclass(frozen=True, eq=False)
class Entering:
    """What an attention module was called with.

    Attributes:
        tokens: Its first argument, or `hidden_states`.
        arguments: Its keyword arguments.
    """

    tokens: Tensor
    arguments: Mapping[str, object]


def run(model: nn.Module, inputs: object) -> Tensor:
    """The model's outputs as a tensor, in float64 throughout where its parameters are float64."""
    with in_precision_of(model.parameters()):
        return as_tensor(model(**inputs) if isinstance(inputs, Mapping) else model(inputs))


def entering(model: nn.Module, attention: nn.Module, inputs: object) -> Entering:
    """What enters the attention module while the model runs."""
    seen: list[Entering] = []

    def note(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        found = args[0] if args else kwargs["hidden_states"]
        assert isinstance(found, Tensor)
        seen.append(Entering(found.detach(), dict(kwargs)))

    handle = attention.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with torch.no_grad():
            run(model, inputs)
    finally:
        handle.remove()
    return seen[0]


def with_output(model: nn.Module, attention: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """The model's outputs with the attention module's output replaced."""

    def replaced(_: nn.Module, __: object, result: object) -> object:
        return (output, *result[1:]) if isinstance(result, tuple) else output

    handle = attention.register_forward_hook(replaced)
    try:
        return run(model, inputs)
    finally:
        handle.remove()
