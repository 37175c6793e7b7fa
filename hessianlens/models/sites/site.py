"""The last attention layer of a decoder, taken out of its network: heads, what enters, what stands behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention


@dataclass(frozen=True)
class Storage:
    """How a model stores its projections.

    Attributes:
        heads: Number of heads.
        transposed: True for ``nn.Linear`` weights (out x in), False where ``x @ W`` (in x out).
    """

    heads: int
    transposed: bool

    def by_head(self, name: str, weight: Tensor) -> list[Tensor]:
        """A projection of all heads, q, k, v or o, cut into each head's own matrix in the order ``x @ W``."""
        matrix = weight.T if self.transposed else weight
        return list(matrix.chunk(self.heads, dim=0 if name == "o" else 1))

    def bias_by_head(self, bias: Tensor) -> list[Tensor]:
        """The bias of a projection of all heads, cut into one row a head."""
        return [piece[None] for piece in bias.chunk(self.heads)]


@dataclass(frozen=True, eq=False)
class AttentionSite:
    """The last attention layer at one batch.

    Attributes:
        prefix: Name of its blocks, such as ``layer3.attn``.
        layer: Its heads, ``F = sum_h A^h X W_V^h W_O^h``; biases are a last row of the weights.
        tokens: What enters, (B, L, d), with a last column of ones if there are biases.
        behind: The rest of the network: F (without output bias) to the model's outputs.
        storage: How the model stores the projections.
        biased: Which of q, k and v have a bias.
    """

    prefix: str
    layer: MultiHeadAttention
    tokens: Tensor
    behind: Callable[[Tensor], Tensor]
    storage: Storage
    biased: frozenset[str]


def heads_of(
    storage: Storage,
    weights: dict[str, Tensor],
    biases: dict[str, Tensor | None],
    **options: Any,
) -> tuple[MultiHeadAttention, frozenset[str]]:
    """Heads from the four projections and their biases; all of q, k, v get a bias row as soon as one has a bias.

    Args:
        storage: How the projections are stored.
        weights: q, k, v, o.
        biases: q, k, v, where they exist.
        options: Activation, mask and temperature of the heads.
    """
    biased = frozenset(name for name, bias in biases.items() if bias is not None)
    cut = {name: storage.by_head(name, weight) for name, weight in weights.items()}
    if biased:
        for name in "qkv":
            bias = biases.get(name)
            rows = [w.new_zeros(1, w.shape[1]) for w in cut[name]] if bias is None else storage.bias_by_head(bias)
            cut[name] = [torch.cat([w, row]) for w, row in zip(cut[name], rows, strict=True)]
    heads: Sequence[FactoredValueAttention] = [
        FactoredValueAttention(q, k, v, o, **options)
        for q, k, v, o in zip(cut["q"], cut["k"], cut["v"], cut["o"], strict=True)
    ]
    return MultiHeadAttention(heads), biased


def with_ones(X: Tensor) -> Tensor:
    """Tokens with a last column of ones, on which biases act."""
    return torch.cat([X, X.new_ones(*X.shape[:-1], 1)], -1)
