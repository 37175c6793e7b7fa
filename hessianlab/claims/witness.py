"""Second derivatives by automatic differentiation alone: the independent witness of every formula in the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev

Weights = dict[str, Tensor]


class Witness:
    """Jacobian, outer-product, functional and full Hessian of ``loss(output(weights))``, dense.

    Only forward passes are written down; torch differentiates them. The outer product is ``J^T C J`` with the loss
    curvature C, the functional part the Hessian of ``<g, F>`` with the loss gradient g held fixed.

    Args:
        output: F as a function of the weights.
        weights: The weights by name; the order of the blocks.
        loss: A number from F.

    >>> scale = Witness(lambda w: w["a"] * w["b"], {"a": torch.ones(1, 1), "b": torch.ones(1, 1)}, torch.sum)
    >>> scale.block("full", "a", "b").item(), scale.block("outer", "a", "a").item()
    (1.0, 0.0)
    """

    def __init__(
        self, output: Callable[[Weights], Tensor], weights: Mapping[str, Tensor], loss: Callable[[Tensor], Tensor]
    ) -> None:
        self.weights = dict(weights)
        self._output, self._loss = output, loss
        self._flat = torch.cat([w.reshape(-1) for w in self.weights.values()])

    def output(self, flat: Tensor) -> Tensor:
        """F as a function of all weights in one vector."""
        parts = flat.split([w.numel() for w in self.weights.values()])
        named = {n: p.reshape(w.shape) for (n, w), p in zip(self.weights.items(), parts, strict=True)}
        return self._output(named)

    @cached_property
    def value(self) -> Tensor:
        """F at the weights."""
        return self.output(self._flat).detach()

    @cached_property
    def gradient(self) -> Tensor:
        """``dl/dF``."""
        return grad(self._loss)(self.value)

    @cached_property
    def weight_gradient(self) -> Weights:
        """``dl/dW`` by name."""
        flat = grad(lambda w: self._loss(self.output(w)))(self._flat)
        parts = flat.split([w.numel() for w in self.weights.values()])
        return {n: p.reshape(w.shape) for (n, w), p in zip(self.weights.items(), parts, strict=True)}

    @cached_property
    def jacobian(self) -> Tensor:
        """``d vec(F) / d weights``."""
        return jacrev(self.output)(self._flat).detach().reshape(self.value.numel(), -1)

    @cached_property
    def outer(self) -> Tensor:
        """``J^T C J``."""
        size = self.value.numel()
        return self.jacobian.T @ hessian(self._loss)(self.value).reshape(size, size) @ self.jacobian

    @cached_property
    def functional(self) -> Tensor:
        """``sum g . d^2 F``."""
        gradient = self.gradient  # before differentiating: a cached property must not see torch's wrapped tensors
        return hessian(lambda w: (gradient * self.output(w)).sum())(self._flat).detach()

    @cached_property
    def full(self) -> Tensor:
        """The Hessian of the loss."""
        return hessian(lambda w: self._loss(self.output(w)))(self._flat).detach()

    def place(self, name: str) -> slice:
        """Where a weight's entries stand."""
        start = 0
        for other, weight in self.weights.items():
            if other == name:
                return slice(start, start + weight.numel())
            start += weight.numel()
        raise KeyError(name)

    def block(self, part: str, row: str, column: str) -> Tensor:
        """A block of "outer", "functional" or "full"."""
        matrix: Tensor = {"outer": lambda: self.outer, "functional": lambda: self.functional}.get(
            part, lambda: self.full
        )()
        return matrix[self.place(row), self.place(column)]


def attention_output(X: Tensor, w: Weights, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """``F = a(X W_Q W_K^T X^T / sqrt(d_K)) X W_V``, written out."""
    return activation(X @ w["Q"] @ w["K"].T @ X.T / w["Q"].shape[1] ** 0.5) @ X @ w["V"]


def softmax_rows(T: Tensor) -> Tensor:
    """The row-wise softmax."""
    return torch.softmax(T, -1)


def mean_square(Y: Tensor) -> Callable[[Tensor], Tensor]:
    """The paper's loss ``||F - Y||^2 / (L d_V)``."""
    return lambda F: (F - Y).square().mean()


def half_square(Y: Tensor) -> Callable[[Tensor], Tensor]:
    """``||F - Y||^2 / 2``: the loss whose gradient is the residual and whose curvature is the identity."""
    return lambda F: (F - Y).square().sum() / 2
