"""Attention maps of the first sequences, to be drawn."""

from __future__ import annotations

from torch import Tensor

from hessianlens.network.base.attention_calls import ObservedAttention, attention_names, observe_attention
from hessianlens.problems import Problem, batch_size

_SEQUENCES = 2
"""Sequences whose attention is kept."""
_MOST_TOKENS = 256
"""Tokens of a sequence up to which attention is kept."""


def attention_maps(problem: Problem) -> dict[str, Tensor]:
    """Attention weights ``[s, h, i, j]`` of the first sequences, by layer; layers of long sequences are left out.

    >>> import hessianlens as hl, torch
    >>> model = hl.models.Transformer(layers=2, d_model=8, heads=2, d_mlp=16, dtype=torch.float64)
    >>> task = hl.tasks.Addition()
    >>> maps = attention_maps(hl.problem(model, task.batch(4, seed=0), task.cross_entropy))
    >>> {name: tuple(weights.shape) for name, weights in maps.items()}
    {'layer0': (2, 2, 18, 18), 'layer1': (2, 2, 18, 18)}
    """
    found: list[Tensor | None] = []

    def see(seen: ObservedAttention) -> None:
        short = max(seen.weights.shape[-2:]) <= _MOST_TOKENS
        found.append(seen.weights[:_SEQUENCES].clone() if short else None)

    if not problem.data:  # a rank without data
        return {}
    assert batch_size(problem.data[0]) > 0
    observe_attention(problem, problem.data[0], see)
    names = attention_names(problem, len(found))
    return {name: weights for name, weights in zip(names, found, strict=True) if weights is not None}
