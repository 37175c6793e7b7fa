"""Modules and losses whose second derivative autograd cannot see, in networks that must be refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import hessianlens as hl
from hessianlens.problems import Problem
from tests.curvature.networks import LENGTH, VOCAB, WIDTH, scrambled, tokens
from tests.variants import DOUBLE, randn


def _tanh_slope(x: Tensor) -> Tensor:
    return 1 - x.tanh().square()


def _in_float32(x: Tensor) -> Tensor:
    """As a kernel sees it, of which no caller knows."""
    return torch.from_numpy(x.detach().numpy().astype("float32"))


class OnceTanh(Function):
    """As kernels are written: right once, marked as no further."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * _tanh_slope(*ctx.saved_tensors)


class DetachedTanh(Function):
    """Right once; what it saves is no part of the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * _tanh_slope(ctx.x)


class OpaqueTanh(DetachedTanh):
    """A backward that autograd cannot look into, and that does not say so."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        with torch.no_grad():
            return cotangent * _tanh_slope(ctx.x)


class CoarseTanh(DetachedTanh):
    """A kernel that computes in float32 whatever it is given, and whose second derivative is missing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return _in_float32(x).tanh().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * _tanh_slope(ctx.x.float()).to(cotangent.dtype)


class TwiceTanh(Function):
    """A Function as it should be: what it saved is on the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * _tanh_slope(*ctx.saved_tensors)


class CoarseTwiceTanh(TwiceTanh):
    """A kernel that computes in float32 whatever it is given, there and back, and whose second derivative is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return _in_float32(x).tanh().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (cotangent.float() * _tanh_slope(x.float())).to(cotangent.dtype)


class OnceCrossEntropy(Function):
    """A fused loss: the gradient is computed with the value."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        ctx.save_for_backward(logits.softmax(-1) - nn.functional.one_hot(targets, logits.shape[-1]))
        return -logits.log_softmax(-1).gather(-1, targets[..., None]).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return cotangent * slope, None


class DetachedCrossEntropy(OnceCrossEntropy):
    """The same without the mark."""

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return cotangent * slope, None


class Applied(nn.Module):
    """A Function as a module."""

    def __init__(self, function: type[Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function.apply(x)


class StraightThrough(nn.Module):
    """Rounded on the way there, not on the way back."""

    def forward(self, x: Tensor) -> Tensor:
        smooth = x.tanh()
        return smooth + ((4 * smooth).round() / 4 - smooth).detach()


class DetachedScale(nn.Module):
    """Divides by a norm that it takes for a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x.tanh() / (1 + x.detach().norm(dim=-1, keepdim=True))


class Residual(nn.Module):
    """A layer of a network: ``x + out(act(in(x)))``."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.input, self.act, self.output = nn.Linear(WIDTH, 3), act, nn.Linear(3, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.output(self.act(self.input(x)))


class Stack(nn.Module):
    """Embedding, two layers and unembedding; the second layer's activation is the one in question."""

    def __init__(self, act: nn.Module | None = None, last: nn.Module | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([Residual(nn.Tanh()), Residual(act or nn.Tanh())])
        self.unembedding = nn.Linear(WIDTH, VOCAB)
        self.last = last or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(self.unembedding(x))


def stack(act: nn.Module | None = None, last: nn.Module | None = None) -> nn.Module:
    return scrambled(Stack(act, last).to(DOUBLE))


def pairs() -> tuple[Tensor, Tensor]:
    return tokens(3), tokens(3, seed=1)


def _linear(outputs: Tensor, _: object) -> Tensor:
    """A loss whose gradient at the outputs is a constant."""
    return (outputs * randn(LENGTH, VOCAB, seed=9)).sum()


def _fused(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return OnceCrossEntropy.apply(outputs, batch[1])


def _fused_squared(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return OnceCrossEntropy.apply(outputs, batch[1]).square()


def _unmarked(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return DetachedCrossEntropy.apply(outputs, batch[1])


@dataclass(frozen=True)
class Refused:
    """A network that must be refused, who is to blame, and whether the graph alone shows it."""

    model: Callable[[], nn.Module]
    loss: Any
    blamed: str
    by_graph: bool

    def problem(self, **options: Any) -> Problem:
        return hl.problem(self.model(), pairs(), self.loss, **options)


_ACT = r"model: layers\.1\.act \({}\) "

REFUSED = {
    "once differentiable in the middle": Refused(
        lambda: stack(Applied(OnceTanh)), "cross_entropy", _ACT.format("Applied"), True
    ),
    "once differentiable, constant cotangent": Refused(
        lambda: stack(last=Applied(OnceTanh)), _linear, r"model: last \(Applied\) ", True
    ),
    "once differentiable loss": Refused(stack, _fused, "loss ", True),
    "once differentiable loss, squared": Refused(stack, _fused_squared, "loss ", True),
    "detached in the backward": Refused(
        lambda: stack(Applied(DetachedTanh)), "cross_entropy", _ACT.format("Applied"), False
    ),
    "detached in the backward, linear loss": Refused(
        lambda: stack(Applied(DetachedTanh)), _linear, _ACT.format("Applied"), False
    ),
    "opaque backward": Refused(lambda: stack(Applied(OpaqueTanh)), "cross_entropy", _ACT.format("Applied"), False),
    "opaque backward in float32": Refused(
        lambda: stack(Applied(CoarseTanh)), "cross_entropy", _ACT.format("Applied"), False
    ),
    "detached loss": Refused(stack, _unmarked, "loss ", False),
    "straight-through": Refused(
        lambda: stack(StraightThrough()), "cross_entropy", _ACT.format("StraightThrough"), False
    ),
    "detached in the forward": Refused(
        lambda: stack(DetachedScale()), "cross_entropy", _ACT.format("DetachedScale"), False
    ),
}
