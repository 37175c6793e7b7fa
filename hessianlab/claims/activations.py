"""The same lone layer under different attention activations: Hessians, exponents and signs, measured once a process."""

from __future__ import annotations

from functools import cache

from hessianlab.claims.definition import seeds
from hessianlab.claims.quantities import block_norm, slope
from hessianlab.claims.samples import Sample, sample, samples_of
from hessianlens.attention import SelfAttention
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

SHAPES = ((6, 4, 3), (5, 3, 3), (7, 3, 4))
"""(L, d, d_K)."""

NOT_NORMALISED = ("linear", "relu", "tanh", "sigmoid", "exp")
"""Activations that act on every score by itself."""

NAMES = {"relu": "ReLU", "relu_normalised": "ReLU over its row sum", "sigmoid_log_length": "sigmoid with bias -log L"}
"""Activations whose name in the library is not how one would say it."""

Shape = tuple[int, int, int]


def named(activation: str) -> str:
    """An activation as readers know it.

    >>> named("softmax"), named("relu_normalised")
    ('softmax', 'ReLU over its row sum')
    """
    return NAMES.get(activation, activation)


def layer(activation: str, seed: int, shape: Shape) -> SelfAttention:
    """Weights from N(0, 1/d), the same for every activation."""
    return SelfAttention(*sample(seed, *shape).weights.values(), activation=activation)


@cache
def hessian(activation: str, seed: int, shape: Shape = SHAPES[0], scale: float = 1.0) -> AttentionHessian:
    """Square loss, target N(0, 1), tokens N(0, scale^2)."""
    drawn = sample(seed, *shape)
    return attention_hessian(layer(activation, seed, shape), scale * drawn.X, SquareLoss(drawn.Y))


@cache
def frozen(activation: str, seed: int, shape: Shape, scale: float) -> AttentionHessian:
    """Loss gradient and curvature held fixed while the tokens shrink, as Equation (5) counts."""
    drawn = sample(seed, *shape)
    return attention_hessian(layer(activation, seed, shape), scale * drawn.X, grad=drawn.Y, curvature=1.0)


def exponents(activation: str, part: str, row: str, column: str, scales: tuple[float, ...]) -> list[float]:
    """Powers of the token scale in a block's norm, 3 shapes x 2 seeds."""
    return [
        slope(scales, [block_norm(frozen(activation, seed, shape, s), part, row + column) for s in scales])
        for shape in SHAPES
        for seed in seeds(2)
    ]


def drawn_samples() -> tuple[Sample, ...]:
    """Three seeds of every shape with softmax, drawn anew at every call."""
    return samples_of(SHAPES, 3)
