"""What the graph of a result tells: Functions that are differentiable once, and the leaves behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import custom_bwd
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import hessianlens as hl
from hessianlens.derivatives.graph import (
    custom_functions,
    expect_twice_differentiable,
    in_half_precision,
    once_only,
    padding,
)
from hessianlens.errors import InputError
from tests.curvature.refused import DetachedTanh, OnceTanh, TwiceTanh
from tests.variants import randn


class DecoratedTanh(OnceTanh):
    """Marked under a decorator of PyTorch's."""

    @staticmethod
    @custom_bwd(device_type="cpu")
    @once_differentiable
    def backward(ctx, cotangent: Tensor) -> Tensor:
        return cotangent


class NamedAlike(Function):
    """A backward called as PyTorch's wrapper is."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx, cotangent: Tensor) -> Tensor:
        def wrapper(value: Tensor) -> Tensor:
            return 2 * value

        return wrapper(cotangent)


def _leaf(seed: int) -> Tensor:
    return randn(3, seed=seed).requires_grad_()


@pytest.mark.parametrize("function", [OnceTanh, DecoratedTanh])
def test_marked_functions_and_the_leaves_behind_them(function: type[Function]) -> None:
    before, beside = _leaf(0), _leaf(1)
    (found,) = once_only((function.apply(before.sin()) * beside).sum())
    assert found.function == function.__name__
    assert found.reaches([before]) and found.reaches([beside, before]) and not found.reaches([beside])


@pytest.mark.parametrize("function", [DetachedTanh, TwiceTanh, NamedAlike])
def test_unmarked_functions_are_known_as_custom_only(function: type[Function]) -> None:
    result = function.apply(_leaf(0)).sum()
    assert not once_only(result)
    assert custom_functions(result) == {f"{function.__name__}Backward"}
    expect_twice_differentiable("model", result)


def test_a_result_without_a_graph_has_nothing_on_its_way() -> None:
    for result in (randn(1), _leaf(0)):
        assert once_only(result) == [] and custom_functions(result) == set() and padding(result) == []


def test_a_marked_function_of_constants_is_not_on_the_way() -> None:
    assert not once_only(OnceTanh.apply(randn(3)) * _leaf(0))


def test_a_marked_function_is_refused_by_name() -> None:
    with pytest.raises(hl.InputError, match=r"^loss cannot be differentiated twice: the backward of its OnceTanh is"):
        expect_twice_differentiable("loss", OnceTanh.apply(_leaf(0)))


def test_half_precision_on_the_way() -> None:
    assert in_half_precision(_leaf(0).to(torch.bfloat16).double().sum())
    assert not in_half_precision(_leaf(0).float().double().sum())


def test_rows_that_stand_for_padding_also_of_weights_that_are_computed() -> None:
    weight = randn(4, 2).requires_grad_()
    result = nn.functional.embedding(torch.tensor([0, 2]), 3 * weight, padding_idx=2)
    assert [(leaf is weight, row) for leaf, row in padding(result)] == [(True, 2)]
    assert padding(nn.functional.embedding(torch.tensor([0, 2]), weight)) == []


class Moody(Function):
    """Its backward runs in training alone, as reversible layers do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise AssertionError("use model.train()")


def test_a_backward_that_raises_is_a_refusal() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(2, 1).double()

        def forward(self, x: Tensor) -> Tensor:
            return Moody.apply(self.map(x))

    data = torch.ones(3, 2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"a backward of its own raised 'AssertionError: use model\.train\(\)'"):
        hl.block_norms(hl.problem(Model(), data, "square"), probes=2)
