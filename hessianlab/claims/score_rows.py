"""Rows of scores and what is made of them: the measuring device of the claims about softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hessianlab.claims.samples import normal
from hessianlens.attention import SelfAttention

MASKED = -math.inf
"""The score of a token that may not be seen."""

SHAPES = ((5, 4, 3), (9, 6, 8), (17, 16, 8))
"""Layers to try: tokens, width of a token, width of queries and keys."""


def random_layers(seed: int, count: int, activation: str = "softmax") -> Iterator[tuple[SelfAttention, Tensor]]:
    """So many layers of every shape, and tokens for each."""
    for n in range(seed, seed + count):
        for length, width, d_k in SHAPES:
            layer = SelfAttention.random(width, d_k, seed=n, dtype=torch.float64, activation=activation)
            yield layer, normal(n, length, width)


def row(scores: Sequence[float]) -> Tensor:
    """Scores as a vector in double precision."""
    return torch.tensor(scores, dtype=torch.float64)


def softmax(scores: Sequence[float], temperature: float = 1.0) -> list[float]:
    """Softmax by its definition, in double precision.

    >>> [round(p, 2) for p in softmax([3, 2, 1])]
    [0.67, 0.24, 0.09]
    """
    weights: list[float] = torch.softmax(row(scores) / temperature, -1).tolist()
    return weights


def divided(scores: Sequence[float]) -> list[float]:
    """Every score over the sum of the row.

    >>> divided([3, -2, 1])
    [1.5, -1.0, 0.5]
    """
    weights: list[float] = (by_row_sum(row(scores)) + 0.0).tolist()  # + 0.0 makes -0 a plain 0
    return weights


def by_row_sum(scores: Tensor) -> Tensor:
    """Every score over the sum of its row, as an alternative to softmax."""
    return scores / scores.sum(-1, keepdim=True)


def by_relu_sum(scores: Tensor) -> Tensor:
    """Positive parts over their sum, without a guard against rows that have none."""
    return by_row_sum(torch.relu(scores))


def from_uniform(weights: Tensor) -> Tensor:
    """Half the sum of the distances to equal weights: 0 if uniform, near 1 if one-hot, more if some are negative."""
    return (weights - 1 / weights.shape[-1]).abs().sum(-1) / 2


def apart(first: Sequence[float], second: Sequence[float]) -> float:
    """Total variation distance of two rows of weights: how much weight sits elsewhere."""
    return sum(abs(a - b) for a, b in zip(first, second, strict=True)) / 2


def dot_products(seed: int, d_k: int, rows: int, keys: int = 1) -> Tensor:
    """Scores of `rows` queries, each with its own `keys` keys, all components standard normal; a piece at a time."""
    generator = torch.Generator().manual_seed(seed)
    pieces = [
        torch.einsum("rd,rkd->rk", _draw(generator, size, d_k), _draw(generator, size, keys, d_k))
        for size in _sizes(rows, max(1, 2**22 // (keys * d_k)))
    ]
    return torch.cat(pieces).double()


def _draw(generator: torch.Generator, *shape: int) -> Tensor:
    # Single precision halves the time; these numbers only feed statistics.
    return torch.randn(*shape, generator=generator)


def _sizes(rows: int, most: int) -> Iterator[int]:
    for start in range(0, rows, most):
        yield min(most, rows - start)
