"""Where a network ends and its loss begins: at outputs, or in front of the last linear map if they are not formed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.losses.fused_cross_entropy import CrossEntropyForm, Part
from hessianlens.losses.fused_cross_entropy.row_parts import CrossEntropyRule
from hessianlens.problems import Batch, ClassesLoss, Logits, LogitsForward, Problem

Tensors = tuple[Tensor, ...]


class LossBoundary(ABC):
    """The tensors x at which a network ends, and the loss l behind them.

    Attributes:
        tensors: Those x that depend on the leaves, on the graph; one at least.
    """

    tensors: Tensors

    @abstractmethod
    def loss(self, tensors: Sequence[Tensor]) -> Tensor:
        """l, as a function of x."""

    @property
    @abstractmethod
    def outputs(self) -> Tensor:
        """The outputs, formed if they are not."""

    @property
    @abstractmethod
    def positions(self) -> int:
        """How many rows of outputs there are."""

    def outer(self, tangents: Sequence[Tensor]) -> list[Tensor] | None:
        """Of the second derivative of l along tangents of x, the Gauss-Newton part, which is split off at the outputs.

        None where x are the outputs, and autograd is to be asked.
        """
        return None

    def inner(self, tangents: Sequence[Tensor]) -> list[Tensor] | None:
        """The rest of it, which is that of the way from x to the outputs; None where it is zero."""
        return None


class OutputsBoundary(LossBoundary):
    """A network that ends at its outputs."""

    def __init__(self, problem: Problem, params: Mapping[str, Tensor], batch: Batch) -> None:
        self._problem, self._batch = problem, batch
        self.tensors = (problem.forward(params, batch),)

    def loss(self, tensors: Sequence[Tensor]) -> Tensor:
        """The loss of outputs."""
        return self._problem.loss(tensors[0], self._batch)

    @property
    def outputs(self) -> Tensor:
        """X."""
        return self.tensors[0]

    @property
    def positions(self) -> int:
        """How many rows of outputs there are."""
        outputs = self.outputs
        return outputs.numel() // max(outputs.shape[-1] if outputs.ndim else 1, 1)


class LogitsBoundary(LossBoundary):
    """A network that ends at the features, the weight and the bias of its last linear map."""

    def __init__(self, loss: ClassesLoss, logits: Logits, batch: Batch) -> None:
        self._loss, self._batch, self.logits = loss, batch, logits
        everything = (logits.hidden, logits.weight, logits.bias)
        self._moving = [k for k, tensor in enumerate(everything) if tensor is not None and tensor.requires_grad]
        self._moving = self._moving or [0]
        self._everything = everything
        self.tensors = tuple(tensor for k in self._moving if (tensor := everything[k]) is not None)

    def _with(self, tensors: Sequence[Tensor]) -> Logits:
        given: list[Tensor | None] = list(self._everything)
        for k, tensor in zip(self._moving, tensors, strict=True):
            given[k] = tensor
        hidden, weight, bias = given
        assert hidden is not None and weight is not None
        return Logits(hidden, weight, bias, self.logits.scale, self.logits.softcap)

    def loss(self, tensors: Sequence[Tensor]) -> Tensor:
        """The loss, in chunks of tokens."""
        return self._loss.of_logits(self._with(tensors), self._batch)

    @property
    def outputs(self) -> Tensor:
        """The logits."""
        return _formed(self.logits)

    @property
    def positions(self) -> int:
        """How many rows of logits there are."""
        return self.logits.hidden.numel() // self.logits.hidden.shape[-1]

    def outer(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """By a closed form."""
        return self.second_derivative(tangents, Part.OUTER)

    def inner(self, tangents: Sequence[Tensor]) -> list[Tensor] | None:
        """By a closed form; features alone enter a linear map linearly."""
        if self._moving == [0] and self.logits.softcap is None:
            return None
        return self.second_derivative(tangents, Part.FUNCTIONAL)

    def second_derivative(self, tangents: Sequence[Tensor], part: Part) -> list[Tensor]:
        """A part of the second derivative of l, along tangents of x."""
        change: list[Tensor | None] = [None, None, None]
        for k, tangent in zip(self._moving, tangents, strict=True):
            change[k] = tangent.reshape(-1, tangent.shape[-1]) if k == 0 else tangent
        form, tensors, g = self._closed
        with torch.no_grad():
            found = form.hvp(*tensors, g=g, change=tuple(change), wanted=self._wanted(form), pushing=False, part=part)
        return self._shaped(found)

    def gradient(self) -> list[Tensor]:
        """The gradient of l."""
        form, tensors, g = self._closed
        with torch.no_grad():
            return self._shaped(form.vjp(*tensors, g=g, wanted=self._wanted(form)))

    def _wanted(self, form: CrossEntropyForm) -> list[bool]:
        return [k in self._moving for k in range(form.inputs)]

    def _shaped(self, found: Sequence[Tensor | None]) -> list[Tensor]:
        own = [tensor for tensor in found if tensor is not None]
        return [d.reshape(x.shape) for d, x in zip(own, self.tensors, strict=True)]

    @cached_property
    def _closed(self) -> tuple[CrossEntropyForm, tuple[Tensor | None, ...], Tensor]:
        """The closed form of l, its tensors, and what its losses are multiplied by."""
        classes, logits = self._loss.classes(self._batch), self.logits
        h = logits.hidden.detach().reshape(-1, logits.hidden.shape[-1])
        form = CrossEntropyForm(CrossEntropyRule(classes.ignore_index, classes.smoothing, logits.scale, logits.softcap))
        bias = None if logits.bias is None else logits.bias.detach()
        weight = None if classes.weight is None else classes.weight.to(h)
        tensors = (h, logits.weight.detach(), bias, classes.targets.reshape(-1), weight)
        return form, tensors, h.new_full((len(h),), classes.factor)


def _formed(logits: Logits) -> Tensor:
    """Logits as a tensor."""
    found = logits.scale * torch.nn.functional.linear(logits.hidden, logits.weight, logits.bias)
    return found if logits.softcap is None else logits.softcap * torch.tanh(found / logits.softcap)


def loss_boundary_of(problem: Problem, params: Mapping[str, Tensor], batch: Batch) -> LossBoundary:
    """Where the network of a problem ends, at some parameters and a batch."""
    if isinstance(problem.forward, LogitsForward) and isinstance(problem.loss, ClassesLoss):
        return LogitsBoundary(problem.loss, problem.forward.logits(params, batch), batch)
    return OutputsBoundary(problem, params, batch)
