"""What there is to know of one row of scores: its weights, their spread, how they react, and where they break."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention.moments import attention_entropy
from hessianlens.attention.row_weights import (
    attention_weights,
    exp_limit,
    log_softmax,
    naive_softmax,
    vanishing_gap,
    weights_jacobian,
)
from hessianlens.errors import check_number, check_whole, expect

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Narrow to wide."""


@dataclass(frozen=True)
class RowFacts:
    """One activation at one row.

    Attributes:
        activation: Its name.
        weights: Of every score; 0 where hidden.
        total: Sum of the weights.
        entropy: In nats; None where the weights are no distribution (negative, or not of sum one).
        gradient_norm: Frobenius norm of the derivative of the weights by the scores.
        remark: What a reader has to know of this row, if anything.
    """

    activation: str
    weights: tuple[float, ...]
    total: float
    entropy: float | None
    gradient_norm: float
    remark: str = ""


@dataclass(frozen=True)
class Precision:
    """Softmax of the same row in one dtype.

    Attributes:
        dtype: Its name.
        exp_limit: From this score on, over the temperature, its exponential overflows.
        gap: A score so far below the largest has weight 0.
        naive: Weights by the definition; None where they are not numbers, or all zero because their sum is infinite.
        shifted: Weights with the largest score taken off first.
        factor: Multiplied by more than this, the scores break the definition: a sum that overflows, or one of nothing
            but zeros; None if no factor does.
    """

    dtype: str
    exp_limit: float
    gap: float
    naive: tuple[float, ...] | None
    shifted: tuple[float, ...]
    factor: float | None


def row_facts(
    scores: Sequence[float], activation: str = "softmax", hidden: Collection[int] = (), temperature: float = 1.0
) -> RowFacts:
    """Weights, entropy and reaction of one row in double precision.

    Args:
        scores: The row.
        activation: Name of an attention activation.
        hidden: Positions that may not be seen, counted from 0.
        temperature: Divides the scores.

    >>> facts = row_facts([2.8, 1.2, 0.5, 3.1], hidden=[2])
    >>> [round(w, 3) for w in facts.weights], round(facts.entropy, 3)
    ([0.392, 0.079, 0.0, 0.529], 0.905)
    >>> row_facts([1.0], hidden=[0]).remark
    'Every score is hidden. ...'
    """
    row, visible = _row(scores), _visible(len(scores), hidden)
    weights = attention_weights(row, activation, visible, temperature)
    jacobian = weights_jacobian(row, activation, visible, temperature)
    total = float(weights.sum())
    proper = bool((weights >= 0).all()) and abs(total - 1) < 1e-9
    return RowFacts(
        activation,
        tuple(weights.tolist()),
        total,
        float(attention_entropy(weights[None])) if proper else None,
        float(jacobian.norm()),
        _remark(activation, row, visible, weights),
    )


def precisions(scores: Sequence[float], hidden: Collection[int] = (), temperature: float = 1.0) -> list[Precision]:
    """Softmax of the visible scores in every dtype, by its definition and shifted, with the limits of the dtype.

    >>> [p.dtype for p in precisions([0.0, 100.0]) if p.naive is None]
    ['float16', 'bfloat16', 'float32']
    """
    row, visible = _row(scores), _visible(len(scores), hidden)
    seen = row[visible] / check_number("temperature", temperature, 0.0, strictly=True)
    found = []
    for dtype in DTYPES:
        narrow = seen.to(dtype)
        naive = naive_softmax(narrow) if len(narrow) else narrow
        shifted = attention_weights(narrow) if len(narrow) else narrow
        found.append(
            Precision(
                str(dtype).removeprefix("torch."),
                exp_limit(dtype),
                vanishing_gap(dtype),
                _numbers(naive),
                tuple(shifted.tolist()),
                breaking_factor(seen.tolist(), dtype),
            )
        )
    return found


def breaking_factor(scores: Sequence[float], dtype: torch.dtype) -> float | None:
    """The factor of the scores beyond which their exponentials cannot be summed and divided; None if there is none.

    >>> round(breaking_factor([1.0, 1.0], torch.float32), 2), breaking_factor([0.0, -1.0], torch.float32)
    (88.03, None)
    """
    top = max(scores, default=0.0)
    if top == 0:
        return None
    if top < 0:  # all exponentials become zero
        return vanishing_gap(dtype) / -top
    limit = exp_limit(dtype)
    low, high = 0.0, limit / top
    for _ in range(60):  # the sum overflows a little before its largest summand
        middle = (low + high) / 2
        total = middle * top + math.log(sum(math.exp(middle * (score - top)) for score in scores))
        low, high = (middle, high) if total <= limit else (low, middle)
    return high


def log_weights(scores: Sequence[float], hidden: Collection[int] = (), temperature: float = 1.0) -> list[float]:
    """Logarithms of the softmax weights, minus infinity where hidden."""
    found: list[float] = log_softmax(_row(scores), _visible(len(scores), hidden), temperature).tolist()
    return found


def _row(scores: Sequence[float]) -> Tensor:
    expect(len(scores) > 0, "scores: got none, expected one number or more.")
    return torch.tensor([check_number("scores", score) for score in scores], dtype=torch.float64)


def _visible(length: int, hidden: Collection[int]) -> Tensor:
    visible = torch.ones(length, dtype=torch.bool)
    for position in hidden:
        visible[check_whole("mask", position, 0, length - 1, f"{length} scores, counted from 0")] = False
    return visible


def _numbers(weights: Tensor) -> tuple[float, ...] | None:
    sound = bool(torch.isfinite(weights).all()) and (not len(weights) or bool(weights.any()))
    return tuple(weights.tolist()) if sound else None


def _remark(activation: str, row: Tensor, visible: Tensor, weights: Tensor) -> str:
    if not bool(visible.any()):
        return (
            "Every score is hidden. With minus infinity in all places the definition of softmax is 0/0, which is not a "
            "number and spreads through the network; here the row gets weight 0 everywhere and no gradient."
        )
    if not bool(weights.any()):
        return "No visible score is positive enough to get weight: the row is 0 everywhere, and passes no gradient."
    if bool((weights < 0).any()):
        return "Some weights are negative: they are no distribution, and have no entropy."
    total = float(weights.sum())
    if abs(total - 1) > 1e-9:
        return f"The weights sum to {total:.3g}: they are no distribution, and have no entropy."
    return ""
