"""Steps that are certainly right: each agrees with differences twice, and whatever hides a dependence is seen."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as nnf

from hessianlens.derivatives.graph import steps_of
from hessianlens.derivatives.step_check import STEPS_OF_PYTORCH, StepCheck, _kind
from tests.variants import randn

CLASSES = torch.tensor([2, 0, 1])
SQUARE = randn(3, 3, seed=5)
VISIBLE = torch.tensor([[True, False, True]] * 3)

EXAMPLES: dict[str, Callable[[Tensor], Tensor]] = {
    "View": lambda x: x.view(9).sin(),
    "UnsafeView": lambda x: (x[None] @ SQUARE).sin(),
    "ReshapeAlias": lambda x: x.reshape(9).sin(),
    "Expand": lambda x: x[None].expand(2, 3, 3).sin(),
    "Squeeze": lambda x: x[None].squeeze(0).sin(),
    "Unsqueeze": lambda x: x.unsqueeze(0).sin(),
    "Permute": lambda x: x.permute(1, 0).sin(),
    "Transpose": lambda x: x.transpose(0, 1).sin(),
    "T": lambda x: x.t().sin(),
    "Clone": lambda x: x.clone().sin(),
    "Alias": lambda x: torch.ops.aten.alias(x).sin(),
    "Slice": lambda x: x[1:].sin(),
    "Select": lambda x: x[1].sin(),
    "Split": lambda x: x.split(2)[0].sin(),
    "SplitWithSizes": lambda x: x.split([1, 2])[1].sin(),
    "UnsafeSplit": lambda x: torch.unsafe_split(x, 2)[0].sin(),
    "Unbind": lambda x: x.unbind()[1].sin(),
    "Cat": lambda x: torch.cat([x, x.sin()]).sin(),
    "Stack": lambda x: torch.stack([x, x.sin()]).sin(),
    "Repeat": lambda x: x.repeat(2, 1).sin(),
    "Flip": lambda x: x.flip(0).sin(),
    "Roll": lambda x: x.roll(1, 0).sin(),
    "Tril": lambda x: x.tril().sin(),
    "Triu": lambda x: x.triu().sin(),
    "Index": lambda x: x[CLASSES].sin(),
    "IndexSelect": lambda x: x.index_select(0, CLASSES).sin(),
    "Gather": lambda x: x.gather(1, CLASSES[:, None]).sin(),
    "Where": lambda x: torch.where(VISIBLE, x, x.sin()).sin(),
    "MaskedFill": lambda x: x.masked_fill(VISIBLE, 2.0).sin(),
    "Embedding": lambda x: nnf.embedding(CLASSES, x).sin(),
    "Mm": lambda x: x.mm(x).sin(),
    "Bmm": lambda x: x[None].bmm(x[None]).sin(),
    "Addmm": lambda x: torch.addmm(x, x, x).sin(),
    "Baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]).sin(),
    "Mv": lambda x: x.mv(x[0]).sin(),
    "Addmv": lambda x: torch.addmv(x[1], x, x[0]).sin(),
    "Dot": lambda x: x[0].dot(x[1]).sin(),
    "Convolution": lambda x: nnf.conv1d(x[None], x[:, :, None]).sin(),
    "Add": lambda x: (x + x.sin()).sin(),
    "Sub": lambda x: (x - x.sin()).sin(),
    "Rsub": lambda x: torch.rsub(x, 2.0).sin(),
    "Mul": lambda x: x * x.sin(),
    "Div": lambda x: x / (2 + x.sin()),
    "Neg": lambda x: (-x).sin(),
    "Reciprocal": lambda x: (3 + x.sin()).reciprocal(),
    "Pow": lambda x: x**3,
    "Sqrt": lambda x: (2 + x.sin()).sqrt(),
    "Rsqrt": lambda x: (2 + x.sin()).rsqrt(),
    "Abs": lambda x: x.abs().sin(),
    "Sum": lambda x: x.sum(0).sin(),
    "Mean": lambda x: x.mean(0).sin(),
    "Cumsum": lambda x: x.cumsum(0).sin(),
    "Exp": torch.exp,
    "Log": lambda x: (2 + x.sin()).log(),
    "Log1P": lambda x: (1 + x.sin() / 2).log1p(),
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tanh": torch.tanh,
    "Sigmoid": torch.sigmoid,
    "LogSigmoid": nnf.logsigmoid,
    "Erf": torch.erf,
    "Logsumexp": lambda x: x.logsumexp(-1),
    "LinalgVectorNorm": lambda x: x.norm(dim=-1),
    "Relu": lambda x: x.relu().sin(),
    "LeakyRelu": lambda x: nnf.leaky_relu(x).sin(),
    "Elu": lambda x: nnf.elu(x).sin(),
    "Gelu": nnf.gelu,
    "Silu": nnf.silu,
    "Softplus": nnf.softplus,
    "ClampMin": lambda x: x.clamp_min(0.1).sin(),
    "Softmax": lambda x: x.softmax(-1),
    "SafeSoftmax": lambda x: torch.ops.aten._safe_softmax(x, -1),
    "LogSoftmax": lambda x: x.log_softmax(-1),
    "NativeLayerNorm": lambda x: nnf.layer_norm(x, (3,), x[0], x[1]),
    "NativeBatchNorm": lambda x: nnf.batch_norm(x, randn(3), randn(3).exp(), x[0], x[1]).sin(),
    "NllLoss": lambda x: nnf.nll_loss(x.sin(), CLASSES).sin(),
    "NllLoss2D": lambda x: nnf.nll_loss(x.sin()[None, :, :, None], CLASSES[None, :, None]).sin(),
    "MseLoss": lambda x: nnf.mse_loss(x, SQUARE),
    "BinaryCrossEntropyWithLogits": lambda x: nnf.binary_cross_entropy_with_logits(x, SQUARE.sigmoid()),
    "SmoothL1Loss": lambda x: nnf.smooth_l1_loss(x, SQUARE, beta=0.3).sin(),
    "HuberLoss": lambda x: nnf.huber_loss(x, SQUARE, delta=0.3).sin(),
}
"""By the name of a step, a function with it, of a matrix."""
ELSEWHERE = {"torch::autograd::AccumulateGrad", "ReshapeAlias", "Alias", "ToCopy"}
"""Steps that only move or cast numbers, and that not every version of PyTorch takes in the example."""


def _doubt(function: Callable[[Tensor], Any], x: Tensor | None = None) -> str:
    leaf, check = (randn(3, 3, seed=1) if x is None else x).requires_grad_(), StepCheck()
    with check.forward():
        result = function(leaf)
    check.results.append(result)
    with check.backward():
        torch.autograd.grad(result.sum(), leaf, create_graph=True, allow_unused=True)
    return check.doubt


def test_every_step_has_an_example() -> None:
    assert set(EXAMPLES) | ELSEWHERE == STEPS_OF_PYTORCH


@pytest.mark.every_case
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_step_agrees_with_differences_twice(name: str) -> None:
    function = EXAMPLES[name]
    x = randn(3, 3, seed=1).requires_grad_()
    assert name in {_kind(step.name()) for step in steps_of(function(x).sum())} or name in ELSEWHERE
    assert gradcheck(function, x) and gradgradcheck(function, x)
    assert _doubt(function) == ""


def _copied(x: Tensor) -> Tensor:
    buffer = torch.zeros(3, 3, dtype=x.dtype)
    buffer.copy_(x.sin())
    return buffer * x


def _replaced(x: Tensor) -> Tensor:
    y = x.sin()
    y.data = torch.ones_like(y)
    return y * x


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.norm()
    return x / scale


def _in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        scale = x.norm()
    return x / scale.clone()


def _hooked(hook: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        y = x.sin()
        y.register_hook(hook)
        return y * x

    return function


def _hooked_at_its_step(x: Tensor) -> Tensor:
    y = x.sin()
    assert y.grad_fn is not None
    y.grad_fn.register_hook(lambda inner, outer: tuple(2 * one for one in inner))
    return y * x


def _unpacked(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 2 * t):
        return x.sin() * x


def _in_a_loop(x: Tensor) -> Tensor:
    y = x
    for step in (torch.tanh, torch.detach, torch.sin):
        y = step(y)
    return x * y


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Tensor:
        return 2 * cotangents[0]


HIDING: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "detach": (lambda x: x / x.detach().norm(), "detached"),
    "detached right after a step that saves its result": (lambda x: x * x.tanh().detach(), "detached"),
    "a step and a detachment by one line of code": (_in_a_loop, "detached"),
    "data": (lambda x: x / x.data.norm(), "detached"),
    "other data": (_replaced, "Tensor.data"),
    "no_grad": (_without_gradients, "without gradients"),
    "inference_mode": (_in_inference_mode, "gradients|detached"),
    "item": (lambda x: x / x.norm().item(), "reads or replaces"),
    "float": (lambda x: x / float(x.norm().sin() + 2), "reads or replaces"),
    "tolist": (lambda x: x * torch.tensor(x.tolist(), dtype=x.dtype), "tolist"),
    "numpy": (lambda x: x * torch.from_numpy(x.detach().numpy()), "detached"),
    "storage": (lambda x: x * x.sin().untyped_storage().nbytes(), "untyped_storage"),
    "straight through": (lambda x: x + (x.round() - x).detach(), "detached"),
    "a hook": (_hooked(lambda g: 2 * g), "register_hook"),
    "a hook that is no function in Python": (_hooked(operator.neg), "register_hook"),
    "a hook at a step": (_hooked_at_its_step, "runs in the backward pass"),
    "hooks on saved tensors": (_unpacked, "runs in the backward pass"),
    "a Function": (Doubled.apply, "without gradients|runs in the backward pass"),
    "an embedding that scales": (lambda x: nnf.embedding(CLASSES, x, scale_grad_by_freq=True), "scales its gradient"),
    "a step that is not known": (lambda x: x.median(0).values, "is not among the steps"),
}


@pytest.mark.every_case
@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("name", HIDING)
def test_what_hides_a_dependence_is_seen(name: str) -> None:
    function, words = HIDING[name]
    doubt = _doubt(function)
    assert any(word in doubt for word in words.split("|")), doubt


def test_what_does_not_depend_on_the_leaves_may_be_detached() -> None:
    assert _doubt(lambda x: x / SQUARE.clone().detach().norm().item()) == ""
    assert "CopyBackwards is not among" in _doubt(_copied)  # what is written into a buffer is left to differences
    assert _doubt(lambda x: x * torch.zeros_like(x) + x.masked_fill(x > 0, 0.0)) == ""


def test_nothing_is_left_behind_by_what_was_interrupted() -> None:
    import sys

    before = sys.getprofile(), torch.Tensor.tolist, torch.Tensor.register_hook, torch.Tensor.data
    check, leaf = StepCheck(), torch.ones(2, requires_grad=True)
    for scope in (check.forward, check.backward):
        with pytest.raises(KeyboardInterrupt), scope():
            raise KeyboardInterrupt
    assert before == (sys.getprofile(), torch.Tensor.tolist, torch.Tensor.register_hook, torch.Tensor.data)
    assert torch._C._len_torch_dispatch_stack() == 0 and leaf.tolist() == [1, 1]


def test_under_a_profiler_nothing_is_certain() -> None:
    import sys

    sys.setprofile(lambda *_: None)
    try:
        assert _doubt(torch.sin) == "a profiler is running"
    finally:
        sys.setprofile(None)


def test_layers_of_pytorch_are_certain() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0).double()
    x = randn(2, 3, 4)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert _doubt(layer, x) == ""
    assert "ScaledDotProductFlashAttention" in _doubt(layer, x)  # which has no second derivative
