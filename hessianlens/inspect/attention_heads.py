"""What the heads of a model look at: entropies, moments, and the maps of a few sequences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention import attention_entropy
from hessianlens.network.base.attention_calls import attention_names, see_attention
from hessianlens.problems import Problem, batch_size

_SEQUENCES = 2
"""Sequences whose attention is kept."""
MOST_TOKENS = 256
"""Tokens of a sequence up to which attention is kept and third moments are formed."""


@dataclass(frozen=True)
class HeadSummary:
    """One head, averaged over the rows of all sequences.

    Attributes:
        entropy: In nats; None where weights are negative.
        share: Of the entropy that rows would have which look at all they may see alike.
        largest: The largest weight of a row.
        moments: Norms of the mean, the covariance and the third central moment of the values that a row sees; the
            last two are None for long sequences.
    """

    entropy: float | None
    share: float | None
    largest: float
    moments: tuple[float, float | None, float | None]


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """The attention of one layer.

    Attributes:
        name: The layer.
        heads: Its heads.
        maps: Attention weights of the first sequences, ``[s, h, i, j]``; None where they are too long to be shown.
    """

    name: str
    heads: tuple[HeadSummary, ...]
    maps: Tensor | None


def attention_summary(problem: Problem) -> list[LayerAttention]:
    """Every attention of a model on its first batch; none where it is not met.

    >>> import hessianlens as hl
    >>> model = hl.models.Transformer(layers=2, d_model=8, heads=2, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> layers = attention_summary(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> [layer.name for layer in layers], layers[0].maps.shape
    (['layer0', 'layer1'], torch.Size([2, 2, 18, 18]))
    """
    found: list[tuple[tuple[HeadSummary, ...], Tensor | None]] = []

    def see(weights: Tensor, visible: Tensor, values: Tensor) -> None:
        kept = weights[:_SEQUENCES].clone() if max(weights.shape[-2:]) <= MOST_TOKENS else None
        found.append((tuple(_look(weights, visible, values)), kept))

    if not problem.data:  # a process without data, of several
        return []
    batch = problem.data[0]
    assert batch_size(batch) > 0
    see_attention(problem, batch, see)
    names = attention_names(problem, len(found))
    return [LayerAttention(name, heads, maps) for name, (heads, maps) in zip(names, found, strict=True)]


def _look(weights: Tensor, visible: Tensor, values: Tensor) -> list[HeadSummary]:
    sound = bool((weights >= 0).all())
    equal = visible.expand_as(weights).sum(-1).clamp(min=1).double().log().mean((0, 2))
    entropy = attention_entropy(weights).double().mean((0, 2)) if sound else None
    largest = weights.max(-1).values.double().mean((0, 2))
    moments = [_moments(weights[:, h], values[:, h % values.shape[1]]) for h in range(weights.shape[1])]
    return [
        HeadSummary(
            None if entropy is None else float(entropy[h]),
            None if entropy is None or not equal[h] else float(entropy[h] / equal[h]),
            float(largest[h]),
            moments[h],
        )
        for h in range(weights.shape[1])
    ]


def _moments(A: Tensor, V: Tensor) -> tuple[float, float | None, float | None]:
    """Mean norms over the rows, from inner products of values about their mean: no moment is formed.

    With ``c_j = v_j - m_i``, ``|M_2|^2 = sum_jl A_ij A_il (c_j . c_l)^2``, and ``|M_3|^2`` is the same with the cube.
    """
    A, V = A.double(), V.double()
    mean = A @ V
    first = float(mean.norm(dim=-1).mean())
    if A.shape[-1] > MOST_TOKENS:
        return first, None, None
    second, third = [], []
    for rows, values, means in zip(A, V, mean, strict=True):
        centred = values[None] - means[:, None]
        inner = centred @ centred.transpose(-1, -2)
        both = rows[:, :, None] * rows[:, None, :]
        second.append((both * inner.square()).sum((1, 2)).clamp(min=0).sqrt().mean())
        third.append((both * inner**3).sum((1, 2)).clamp(min=0).sqrt().mean())
    return first, float(torch.stack(second).mean()), float(torch.stack(third).mean())
