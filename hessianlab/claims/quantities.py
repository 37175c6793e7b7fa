"""Quantities that several claims measure: differences, norms, slopes, signs; one layer under several activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hessianlab.claims.definition import measured, seeds
from hessianlab.claims.finding import Check, at_most
from hessianlab.claims.samples import (
    DenseHessians,
    Sample,
    mean_square,
    sample,
    samples_of,
    small_samples,
    softmax_rows,
)
from hessianlab.experiments.statistics import log_log_slope
from hessianlab.wording import activation_in_words
from hessianlens.attention import SelfAttention
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss

EXACT = 1e-10
"""Largest relative difference between two float64 computations of the same matrix."""

ROUNDING = -1e-10
"""A relative eigenvalue above this is not called negative."""


def gap(found: Tensor, wanted: Tensor) -> float:
    """Relative distance of two matrices; infinite if their sizes differ.

    >>> gap(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])) < 0.2
    True
    """
    if found.shape != wanted.shape:
        return math.inf
    size = float(wanted.norm())
    return float((found - wanted).norm()) / size if size > 0 else float(found.norm())


def same(what: str, pairs: Iterable[tuple[Tensor, Tensor]]) -> Check:
    """Passes if the two matrices of every pair agree up to rounding: two float64 computations of one matrix."""
    return at_most(f"{what}, largest relative difference", (gap(*pair) for pair in pairs), EXACT)


def median(values: Iterable[float]) -> float:
    """The middle one; of an even number the lower of two."""
    return float(torch.tensor(list(values)).median())


def largest(values: Iterable[float]) -> float:
    """The largest of some figures; not a number if one of them is not."""
    return float(np.max(list(values)))


def smallest(values: Iterable[float]) -> float:
    """The smallest of some figures; not a number if one of them is not."""
    return float(np.min(list(values)))


def farthest(values: Sequence[float], target: float) -> float:
    """The value farthest from a target: the one that decides whether all are close to it.

    >>> farthest([5.9, 6.0, 6.3], 6)
    6.3
    """
    return max(values, key=lambda value: abs(value - target))


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Least-squares slope in log-log, the exponent of a power law; not a number if a value vanishes.

    >>> round(slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    found = log_log_slope(x, y)
    return math.nan if found is None else found


def relative_minimum(matrix: Tensor) -> float:
    """Smallest eigenvalue of a symmetric matrix over its largest absolute one: below zero if it is indefinite."""
    values = torch.linalg.eigvalsh(matrix)
    top = float(values.abs().max())
    return float(values[0]) / top if top > 0 else 0.0


def negatives(minima: Iterable[float]) -> int:
    """How many relative eigenvalues are negative beyond rounding."""
    return sum(value < ROUNDING for value in minima)


def extremes(matrix: Tensor) -> tuple[float, float]:
    """Smallest and largest eigenvalue over the largest absolute one."""
    values = torch.linalg.eigvalsh(matrix)
    top = float(values.abs().max())
    return (float(values[0]) / top, float(values[-1]) / top) if top > 0 else (0.0, 0.0)


def both_signs(matrix: Tensor, least: float = 1e-10) -> bool:
    """Whether a symmetric matrix has eigenvalues of both signs, each above a share of the largest absolute one.

    >>> both_signs(torch.diag(torch.tensor([1.0, -0.5]))), both_signs(torch.diag(torch.tensor([1.0, -0.5])), 0.6)
    (True, False)
    """
    low, high = extremes(matrix)
    return low < -least and high > least


def negative_mass(matrix: Tensor) -> float:
    """``sum_{lambda < 0} |lambda| / sum |lambda|``: 0 for a positive semi-definite matrix, 1/2 for a balanced one."""
    values = torch.linalg.eigvalsh(matrix)
    values = torch.where(values.abs() > 1e-12 * values.abs().max(), values, 0)
    total = float(values.abs().sum())
    return float(-values[values < 0].sum()) / total if total > 0 else 0.0


@measured
def value_functional_entries() -> dict[str, float]:
    """Largest entry of H_f(V, V), by autograd and by the library."""
    routes = {
        "autograd": [s.by_autograd.block("functional", "V", "V") for s in small_samples()],
        "the library": [s.hessian.functional["V", "V"].to_dense() for s in small_samples()],
    }
    return {route: largest(float(block.abs().max()) for block in blocks) for route, blocks in routes.items()}


def value_functional_checks() -> tuple[Check, ...]:
    """H_f(V, V) is zero by two routes."""
    found = value_functional_entries()
    return tuple(at_most(f"largest entry of H_f(V,V), by {route}", value, 0.0) for route, value in found.items())


def block_norm(H: AttentionHessian, part: str, block: str = "") -> float:
    """Frobenius norm of a block such as "QK", or of the whole matrix."""
    matrix = H.part(part)
    return float((matrix[block[0], block[1]] if block else matrix[:]).frobenius_norm())


def query_key_norm(H: AttentionHessian, part: str) -> float:
    """Frobenius norm of the query-key part, four blocks."""
    return math.sqrt(sum(block_norm(H, part, r + c) ** 2 for r in "QK" for c in "QK"))


def merged(one: Sample) -> Tensor:
    """The single matrix with the same scores."""
    w = one.weights
    return w["Q"] @ w["K"].T / math.sqrt(one.shape[2])


def single_matrix_by_autograd(
    one: Sample, loss: Callable[[Tensor], Callable[[Tensor], Tensor]] = mean_square
) -> DenseHessians:
    """Automatic differentiation of the layer with one matrix."""

    def output(w: dict[str, Tensor]) -> Tensor:
        return softmax_rows(one.X @ w["QK"] @ one.X.T) @ one.X @ w["V"]

    return DenseHessians(output, {"QK": merged(one), "V": one.weights["V"]}, loss(one.Y))


@measured
def single_matrices_by_autograd() -> tuple[DenseHessians, ...]:
    """Automatic differentiation of every small sample with one matrix."""
    return tuple(single_matrix_by_autograd(s) for s in small_samples())


def t_functional_of_one_matrix() -> float:
    """Largest entry of sum dl/dT . d2T/dW2 for one matrix: T = X W X^T has no second derivative."""
    found = []
    for one in small_samples():
        scores = torch.func.hessian(lambda W, X=one.X: X @ W @ X.T)(merged(one))
        found.append(float(scores.abs().max()))
    return largest(found)


def group_spread(values: Tensor, multiplicity: int) -> float:
    """Largest spread inside groups of equal size of sorted eigenvalues, over the largest; none if all are zero."""
    groups = values.sort().values.reshape(-1, multiplicity)
    size = float(values.abs().max())
    return float((groups[:, -1] - groups[:, 0]).max()) / size if size > 0 else 0.0


def pair_gap(values: Tensor) -> float:
    """Distance of a sorted spectrum from its mirror image."""
    ordered = values.sort().values
    return gap(ordered, -ordered.flip(0))


def flip_gap(matrix: Tensor) -> float:
    """How far the eigenvectors with their first half negated are from belonging to the negated eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix)
    half = len(values) // 2
    flipped = torch.cat([-vectors[:half], vectors[half:]])
    return float((matrix @ flipped + flipped * values).norm() / values.abs().max())


ACTIVATION_SHAPES = ((6, 4, 3), (5, 3, 3), (7, 3, 4))
"""(L, d, d_K)."""

NOT_NORMALISED = ("linear", "relu", "tanh", "sigmoid", "exp")
"""Activations that act on every score by itself."""

Shape = tuple[int, int, int]


def named(activation: str) -> str:
    """An activation as readers know it.

    >>> named("softmax"), named("relu_normalised")
    ('softmax', 'ReLU / row sum')
    """
    return activation_in_words(activation)


def layer(activation: str, seed: int, shape: Shape) -> SelfAttention:
    """Weights from N(0, 1/d), the same for every activation."""
    return SelfAttention(*sample(seed, *shape).weights.values(), activation=activation)


@cache
def hessian(activation: str, seed: int, shape: Shape = ACTIVATION_SHAPES[0], scale: float = 1.0) -> AttentionHessian:
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
        for shape in ACTIVATION_SHAPES
        for seed in seeds(2)
    ]


def drawn_samples() -> tuple[Sample, ...]:
    """Three seeds of every shape with softmax, drawn anew at every call."""
    return samples_of(ACTIVATION_SHAPES, 3)
