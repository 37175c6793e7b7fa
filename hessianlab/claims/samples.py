"""Layers and data that claims are tested on, at several shapes and seeds, with an independent computation beside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev

from hessianlab.claims.definition import measured, seeds
from hessianlab.paper import PrintedAttention
from hessianlens.attention import SelfAttention
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss


def numbers(matrix: Tensor, digits: int = 3) -> str:
    """A small matrix or vector as text; entries below 1e-12 of the largest are rounding and read 0.

    >>> numbers(torch.tensor([[1.0, -0.5], [0.25, 1e-17]]))
    '[[1, -0.5], [0.25, 0]]'
    """
    if matrix.ndim == 0:
        return f"{float(matrix):.{digits}g}"
    kept = torch.where(matrix.abs() < 1e-12 * matrix.abs().max(), 0.0, matrix)
    return "[" + ", ".join(numbers(row, digits) for row in kept) + "]"


def fixed(values: Iterable[float], digits: int = 1) -> str:
    """Numbers with so many decimals, none of them a negative zero.

    >>> fixed([1.25, -0.01])
    '1.2, 0.0'
    """
    return ", ".join(f"{round(value, digits) + 0.0:.{digits}f}" for value in values)


def shown(values: Iterable[float], digits: int = 2) -> str:
    """A row as text.

    >>> shown([0.377, 0.0761])
    '[0.38, 0.08]'
    """
    return f"[{fixed(values, digits)}]"


def listed(values: list[float]) -> str:
    """The smallest and the largest as text, one number if they agree.

    >>> listed([1.0, 1.0]), listed([1.0, 2.5])
    ('1', '1 to 2.5')
    """
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low} to {high}"


Weights = dict[str, Tensor]


class DenseHessians:
    """Jacobian, outer-product, functional and full Hessian of ``loss(output(weights))``, dense.

    Only forward passes are written down; torch differentiates them. The outer product is ``J^T C J`` with the loss
    curvature C, the functional part the Hessian of ``<g, F>`` with the loss gradient g held fixed.

    Args:
        output: F as a function of the weights.
        weights: The weights by name; the order of the blocks.
        loss: A number from F.

    >>> scale = DenseHessians(lambda w: w["a"] * w["b"], {"a": torch.ones(1, 1), "b": torch.ones(1, 1)}, torch.sum)
    >>> scale.block("full", "a", "b").item(), scale.block("outer", "a", "a").item()
    (1.0, 0.0)
    """

    def __init__(
        self, output: Callable[[Weights], Tensor], weights: Mapping[str, Tensor], loss: Callable[[Tensor], Tensor]
    ) -> None:
        self.weights = dict(weights)
        self._output, self._loss = output, loss
        self._flat = torch.cat([w.reshape(-1) for w in self.weights.values()])

    def loss_at(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The loss at other weights, differentiable."""
        return self._loss(self._output(dict(weights)))

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


SHAPES = ((4, 3, 2), (5, 2, 3), (3, 3, 3), (4, 2, 1))
"""(L, d_V, d_K): query width below, above and equal to the token width; more and not more tokens than features."""


def normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Sample:
    """One softmax attention layer in the paper's setting: weights, tokens and a target, all random.

    Attributes:
        X: Tokens, L x d_V.
        Y: Target, L x d_V.
        weights: W_Q, W_K (d_V x d_K) and W_V (d_V x d_V) by "Q", "K", "V".
        activation: What turns scores into attention weights: "softmax" or "linear".
    """

    X: Tensor
    Y: Tensor
    weights: dict[str, Tensor]
    activation: str = "softmax"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, d_V, d_K)."""
        return (*self.X.shape, self.weights["Q"].shape[1])

    @cached_property
    def setting(self) -> PrintedAttention:
        """The same layer in the paper's printed matrices."""
        w = self.weights
        return PrintedAttention(self.X, w["Q"], w["K"], w["V"], self.Y)

    @cached_property
    def layer(self) -> SelfAttention:
        """The same layer in the library."""
        return SelfAttention(*self.weights.values(), activation=self.activation)

    @cached_property
    def hessian(self) -> AttentionHessian:
        """The library's Hessian of the mean square error."""
        return attention_hessian(self.layer, self.X, SquareLoss(self.Y))

    @cached_property
    def by_autograd(self) -> DenseHessians:
        """Automatic differentiation of the same loss."""
        activation = softmax_rows if self.activation == "softmax" else _unchanged
        return DenseHessians(lambda w: attention_output(self.X, w, activation), self.weights, mean_square(self.Y))

    @cached_property
    def linear(self) -> Sample:
        """The same weights, tokens and target without the softmax."""
        return replace(self, activation="linear")

    @cached_property
    def at_target(self) -> Sample:
        """The same layer with a residual of zero."""
        return replace(self, Y=self.layer(self.X))

    def held(self, layer: SelfAttention | None = None, X: Tensor | None = None) -> AttentionHessian:
        """At another layer or tokens, with the loss curvature 2/(L d_V) and the residual Y held."""
        factor = 2 / self.Y.numel()
        return attention_hessian(
            layer or self.layer, self.X if X is None else X, grad=factor * self.Y, curvature=factor
        )

    def query_key(self, part: str) -> Tensor:
        """The query-key part of "outer", "functional", "full", "t_outer" or "t_functional", order Q, K."""
        grid = self.hessian.part(part)
        return torch.cat([torch.cat([grid[r, c].to_dense() for c in "QK"], 1) for r in "QK"], 0)


def _unchanged(T: Tensor) -> Tensor:
    return T


def sample(seed: int, length: int, d_v: int, d_k: int, *, token_scale: float = 1.0) -> Sample:
    """Weights N(0, 1/d_V), tokens N(0, token_scale^2), target N(0, 1).

    >>> sample(0, 4, 3, 2).shape
    (4, 3, 2)
    """
    source = 1000 * seed
    widths = {"Q": d_k, "K": d_k, "V": d_v}
    weights = {n: normal(source + i, d_v, w) / math.sqrt(d_v) for i, (n, w) in enumerate(widths.items())}
    return Sample(token_scale * normal(source + 3, length, d_v), normal(source + 4, length, d_v), weights)


def samples_of(shapes: Iterable[tuple[int, int, int]], repeats: int) -> tuple[Sample, ...]:
    """So many seeds of every shape."""
    return tuple(sample(seed, *shape) for shape in shapes for seed in seeds(repeats))


def first_sample(shape: tuple[int, int, int], fits: Callable[[Sample], bool]) -> Sample:
    """The first of a hundred seeds that shows something, for an example."""
    return next(one for one in samples_of([shape], 100) if fits(one))


@measured
def small_samples() -> tuple[Sample, ...]:
    """Three seeds of every shape: what a formula is tested on."""
    return samples_of(SHAPES, 3)


@measured
def many_samples() -> tuple[Sample, ...]:
    """Fifty layers of one shape: what a sign is counted on."""
    return samples_of([(6, 4, 3)], 50)


def holding(layer: SelfAttention, X: Tensor, A: Tensor) -> SelfAttention:
    """The layer with a bias on its scores that makes its attention matrix A at X: only the explicit factors move."""
    bare = replace(layer, bias=None)
    return replace(layer, bias=A.log() - bare.attend(X[None]).scores[0])


def described(one: Sample) -> str:
    """A small layer in numbers, so that an example can be worked by hand.

    >>> described(sample(0, 2, 1, 1))
    'L = 2, d_V = d_K = 1, X = [0.803, 0.175], W_Q = 1.54, W_K = 0.661, W_V = 0.392, Y = [-1.61, 0.232]'
    """
    L, d, k = one.shape
    sizes = f"L = {L}, d_V = d_K = {d}" if d == k else f"L = {L}, d_V = {d}, d_K = {k}"
    parts = {"X": one.X, **{f"W_{n}": w for n, w in one.weights.items()}, "Y": one.Y}
    return f"{sizes}, " + ", ".join(f"{name} = {numbers(value.squeeze())}" for name, value in parts.items())
