"""Functions given by users, as activations and losses: a missing derivative is refused, others are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import hessianlens as hl
from tests.variants import randn


class Once(torch.autograd.Function):
    """A cube whose backward can be differentiated no further."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class Detached(Once):
    """A cube whose backward forgets what it depends on."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * g


class Sound(Once):
    """A cube that can be differentiated as often as one likes, though not under transforms."""

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


def norm(use: str, function: Callable[[Tensor], Tensor]) -> float:
    """Of the query block of a layer that uses a function in some place."""
    activations = {
        "elementwise": hl.attention.activations.ElementwiseFunction,
        "row": hl.attention.activations.RowFunction,
    }
    activation = activations[use](function, "cube") if use in activations else "softmax"
    layer = hl.SelfAttention(*(randn(4, 4, seed=k) for k in range(3)), activation=activation)
    loss = hl.losses.CustomLoss(lambda F: (function(F) if use == "loss" else F**2).sum())
    return float(hl.attention_hessian(layer, 0.3 * randn(2, 3, 4, seed=3), loss).full["Q", "Q"].frobenius_norm())


USES = ["elementwise", "row", "loss"]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Once, "cannot be differentiated twice: the backward of its Once is marked @once_differentiable"),
        (Detached, "hides part of its derivative from autograd"),
    ],
)
def test_a_function_with_a_missing_derivative_is_refused(use: str, function, said: str) -> None:
    with pytest.raises(hl.InputError, match=said) as refused:
        norm(use, function.apply)
    assert str(refused.value).startswith("function" if use == "loss" else "activation cube")


@pytest.mark.parametrize("use", USES)
def test_a_sound_function_without_support_for_transforms_is_as_good_as_its_formula(use: str) -> None:
    assert norm(use, Sound.apply) == pytest.approx(norm(use, lambda x: x**3), rel=1e-12) and norm(use, Sound.apply) > 0


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("function", [torch.relu, torch.nn.functional.gelu, lambda x: x, torch.abs, torch.round])
def test_kinks_and_constants_accuse_nobody(use: str, function) -> None:
    norm(use, function)
