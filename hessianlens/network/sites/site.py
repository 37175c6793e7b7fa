"""The last attention layer of a decoder, taken out of its network: heads, what enters, what stands behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention

Behind = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Storage:
    """How a model stores its projections.

    Attributes:
        heads: Number of heads.
        transposed: True for ``nn.Linear`` weights (out x in), False where ``x @ W`` (in x out).
        kv_heads: Number of heads of keys and values, each shared by as many consecutive heads; None: as many as heads.

    >>> grouped = Storage(heads=4, transposed=False, kv_heads=2)
    >>> len(grouped.by_head("q", torch.zeros(8, 8))), len(grouped.by_head("k", torch.zeros(8, 4)))
    (4, 2)
    >>> grouped.sharing("k", 1), grouped.sharing("q", 1)
    (range(2, 4), range(1, 2))
    """

    heads: int
    transposed: bool
    kv_heads: int | None = None

    def pieces(self, name: str) -> int:
        """Into how many heads a projection, q, k, v or o, is cut."""
        return self.heads if name in "qo" or self.kv_heads is None else self.kv_heads

    def sharing(self, name: str, piece: int) -> range:
        """The heads that use a piece of a projection."""
        size = self.heads // self.pieces(name)
        return range(piece * size, (piece + 1) * size)

    def by_head(self, name: str, weight: Tensor) -> list[Tensor]:
        """A projection of all heads, q, k, v or o, cut into heads, each a matrix in the order ``x @ W``."""
        matrix = weight.T if self.transposed else weight
        return list(matrix.chunk(self.pieces(name), dim=0 if name == "o" else 1))

    def bias_by_head(self, name: str, bias: Tensor) -> list[Tensor]:
        """The bias of a projection of all heads, cut into one row a head."""
        return [piece[None] for piece in bias.chunk(self.pieces(name))]


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
        narrowed: From some positions to the rest of the network at those alone, for models whose parts can be called.
    """

    prefix: str
    layer: MultiHeadAttention
    tokens: Tensor
    behind: Behind
    storage: Storage
    biased: frozenset[str]
    narrowed: Callable[[Tensor], Behind] | None = None

    @cached_property
    def output(self) -> Tensor:
        """F, what the layer puts out (without output bias), (B, L, d)."""
        with torch.no_grad():
            return self.layer(self.tokens)

    @cached_property
    def network_output(self) -> Tensor:
        """The model's outputs, (B, L, v)."""
        with torch.no_grad():
            return self.behind(self.output)

    def behind_at(self, positions: Tensor) -> Behind:
        """The rest of the network at some positions only, F there to outputs there; the others stay as they are."""
        if self.narrowed is not None:
            return self.narrowed(positions)
        return lambda F: self.behind(self.output.index_copy(1, positions, F))[:, positions]


def heads_of(
    storage: Storage,
    weights: dict[str, Tensor],
    biases: dict[str, Tensor | None],
    kind: type[FactoredValueAttention] = FactoredValueAttention,
    **options: Any,
) -> tuple[MultiHeadAttention, frozenset[str]]:
    """Heads from the four projections and their biases; all of q, k, v get a bias row as soon as one has a bias.

    Args:
        storage: How the projections are stored.
        weights: q, k, v, o.
        biases: q, k, v, where they exist.
        kind: What a head is.
        options: Activation, mask, temperature and whatever else the heads take.
    """
    biased = frozenset(name for name, bias in biases.items() if bias is not None)
    cut = {name: storage.by_head(name, weight) for name, weight in weights.items()}
    if biased:
        for name in "qkv":
            bias = biases.get(name)
            rows = [w.new_zeros(1, w.shape[1]) for w in cut[name]] if bias is None else storage.bias_by_head(name, bias)
            cut[name] = [torch.cat([w, row]) for w, row in zip(cut[name], rows, strict=True)]
    each = {name: [w for k, w in enumerate(found) for _ in storage.sharing(name, k)] for name, found in cut.items()}
    heads = [kind(*weights, **options) for weights in zip(*(each[name] for name in "qkvo"), strict=True)]
    return MultiHeadAttention(heads), biased


def with_ones(X: Tensor) -> Tensor:
    """Tokens with a last column of ones, on which biases act."""
    return torch.cat([X, X.new_ones(*X.shape[:-1], 1)], -1)
