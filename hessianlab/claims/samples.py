"""Random layers, tokens and targets over seeds and shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlab.claims.draws import measured, seeds
from hessianlab.claims.witness import Witness, attention_output, mean_square, softmax_rows
from hessianlab.claims.wording import numbers
from hessianlab.paper import PrintedAttention
from hessianlens.attention import SelfAttention
from hessianlens.losses import SquareLoss
from hessianlens.theory import AttentionHessian, attention_hessian

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
    def witness(self) -> Witness:
        """Automatic differentiation of the same loss."""
        activation = softmax_rows if self.activation == "softmax" else _unchanged
        return Witness(lambda w: attention_output(self.X, w, activation), self.weights, mean_square(self.Y))

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
