"""Functions that are seen to read nothing but their arguments, and those of which that is not clear."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as nnf

import hessianlens as hl
from hessianlens.models.adapters.self_contained import is_self_contained

LEFT_BEHIND: list[Tensor] = []
MODEL = nn.Linear(2, 2)
FACTOR = 2.0


def helper(out: Tensor) -> Tensor:
    return out.square().mean() * FACTOR


def reading_helper(out: Tensor) -> Tensor:
    return out.mean() + LEFT_BEHIND[0]


def _scaled(scale: object) -> Callable[..., Tensor]:
    return lambda out, batch: out.sum() * scale


def _importing(out: Tensor, batch: Any) -> Tensor:
    import tests.models.test_self_contained as here

    return out.sum() + here.LEFT_BEHIND[0]


def _counted(out: Tensor, batch: Any, kept: list[int] = []) -> Tensor:  # noqa: B006
    return out.sum() + len(kept)


class Penalty:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, out: Tensor, batch: Any) -> Tensor:
        return out.sum() + self.model.balance

    def loss(self, out: Tensor, batch: Any) -> Tensor:
        return self(out, batch)


CLEAR: dict[str, Any] = {
    "a lambda": lambda out, batch: out.sum(),
    "PyTorch's": lambda out, batch: nnf.cross_entropy(out, batch[1]) + math.pi,
    "a number closed over": _scaled(3.0),
    "numbers closed over": _scaled((1, 2.0, None)),
    "a function of its own": lambda out, batch: helper(out),
    "a function in it": lambda out, batch: (lambda x: helper(x))(out),
    "with arguments": partial(helper),
    "one of a task": hl.tasks.Addition().cross_entropy,
    "PyTorch's function": nnf.mse_loss,
}
UNCLEAR: dict[str, Any] = {
    "a list": lambda out, batch: out.sum() + LEFT_BEHIND[0],
    "a model": lambda out, batch: out.sum() + MODEL.weight.sum(),
    "a function that reads a list": lambda out, batch: reading_helper(out),
    "a function in it that does": lambda out, batch: (lambda x: reading_helper(x))(out),
    "a model closed over": _scaled(MODEL),
    "a tensor closed over": _scaled(torch.ones(())),
    "a dictionary closed over": _scaled({"a": 1}),
    "an import": _importing,
    "a default that changes": _counted,
    "an object that is called": Penalty(MODEL),
    "its method": Penalty(MODEL).loss,
    "a module": nn.CrossEntropyLoss(),
    "a module's arguments": partial(helper, MODEL),
    "everything there is": lambda out, batch: out.sum() + globals()["LEFT_BEHIND"][0],
    "evaluated text": lambda out, batch: out.sum() + eval("LEFT_BEHIND")[0],
    "another package": lambda out, batch: pytest.approx(out),
}


@pytest.mark.every_case
@pytest.mark.parametrize("name", [*CLEAR, *UNCLEAR])
def test_what_a_function_reads(name: str) -> None:
    assert is_self_contained({**CLEAR, **UNCLEAR}[name]) is (name in CLEAR)
