"""The layer, the tokens and the loss that all competitors share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

import hessianlens as hl

NAMES = ("Q", "K", "V")
NORMAL, EMBEDDINGS = "normal", "embeddings"
"""Kinds of tokens: independent normal numbers, or what a trained model's embeddings look like."""

_WORDS = 12


@dataclass(frozen=True)
class Size:
    """How large a problem is.

    Attributes:
        batch: Sequences.
        length: Tokens a sequence, L.
        width: Width of a token and of the output, d = d_V.
        key_width: Width of queries and keys, d_K; `width` if None.
        read: Only the last `read` tokens of a sequence carry a loss; all of them if None.
        tokens: `NORMAL` or `EMBEDDINGS`.
    """

    batch: int
    length: int
    width: int
    key_width: int | None = None
    read: int | None = None
    tokens: str = NORMAL

    def describe(self) -> dict[str, int | str]:
        """The sizes by name, all of them spelled out."""
        return {
            "batch": self.batch,
            "L": self.length,
            "d": self.width,
            "d_K": self.key_width or self.width,
            "tokens with a loss": self.read or self.length,
            "tokens": self.tokens,
        }


def embedding_like(batch: int, length: int, width: int, generator: torch.Generator) -> Tensor:
    """Tokens as a model sees them: a few words, a vector of every position and one that all of them share.

    Words and positions have a spectrum that decays, ``k^(-1/2)`` for direction k. Such tokens are nearly alike, so that
    a few directions of the Hessian dominate; independent normal tokens are the best case of random probes. The mean
    square of an entry is one, as for normal tokens.
    """

    def drawn(rows: int) -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    decay = torch.arange(1, width + 1, dtype=torch.float64).rsqrt()
    directions = torch.linalg.qr(drawn(width)).Q * decay[:, None] / decay.square().mean().sqrt()
    words, positions, common = drawn(_WORDS) @ directions, drawn(length) @ directions, drawn(1)
    chosen = torch.randint(_WORDS, (batch, length), generator=generator)
    tokens = words[chosen] + 0.5 * positions + common
    return tokens / tokens.square().mean().sqrt()


def draw_tokens(size: Size, generator: torch.Generator) -> Tensor:
    """Tokens of the kind that a size asks for, (B, L, d)."""
    if size.tokens == EMBEDDINGS:
        return embedding_like(size.batch, size.length, size.width, generator)
    return torch.randn(size.batch, size.length, size.width, generator=generator, dtype=torch.float64)


class Problem:
    """A self-attention layer, a batch and a square loss, in float64 from a fixed seed.

    The library sees the loss as `hessianlens.SquareLoss`, or, where only some tokens carry it, through its gradient and
    one curvature a token. Autograd sees plain PyTorch code, `loss`, without the checks and masks of the library's own
    layer, and which leaves out the queries that the loss does not read.
    """

    def __init__(self, size: Size) -> None:
        self.size = size
        generator = torch.Generator().manual_seed(1)
        shape = (size.batch, size.length, size.width)
        self.X = draw_tokens(size, generator)
        self.Y = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.layer = hl.SelfAttention.random(size.width, size.key_width, seed=0, dtype=torch.float64)
        self.weights: tuple[Tensor, ...] = tuple(self.layer.parameters.values())
        self._scale = math.sqrt(self.weights[0].shape[1])
        read = size.read or size.length
        self._queries, self._targets = self.X[:, -read:], self.Y[:, -read:]

    @cached_property
    def derivatives(self) -> tuple[Tensor, Tensor]:
        """``dl/dF`` and one number ``d^2 l/dF^2`` a token, zero on tokens without loss."""
        carries = torch.zeros(self.X.shape[:2], dtype=torch.float64)
        carries[:, -self._queries.shape[1] :] = 2 / self._targets.numel()
        return carries[..., None] * (self.layer(self.X) - self.Y), carries

    def hessian(self) -> hl.layer.AttentionHessian:
        """The library's Hessian from scratch, forward pass included."""
        if self.size.read is None:
            return hl.attention_hessian(self.layer, self.X, hl.SquareLoss(self.Y))
        gradient, curvature = self.derivatives
        return hl.attention_hessian(self.layer, self.X, grad=gradient, curvature=curvature)

    def loss(self, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> Tensor:
        """The loss as a PyTorch user would write it."""
        return self.loss_of_query(W_Q, self.X @ W_K, self.X @ W_V)

    def loss_of_query(self, W_Q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The loss for keys and values computed beforehand."""
        scores = (self._queries @ W_Q) @ keys.transpose(1, 2) / self._scale
        return (torch.softmax(scores, -1) @ values - self._targets).square().mean()

    def leaves(self) -> list[Tensor]:
        """Copies of the weights that autograd may differentiate."""
        return [w.clone().requires_grad_() for w in self.weights]


class ClassProblem(Problem):
    """The same layer and batch under cross-entropy, whose curvature is a matrix of every token."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        generator = torch.Generator().manual_seed(2)
        self._classes = torch.randint(size.width, self.X.shape[:2], generator=generator)

    def hessian(self) -> hl.layer.AttentionHessian:
        """The library's Hessian from scratch, forward pass included."""
        return hl.attention_hessian(self.layer, self.X, hl.CrossEntropyLoss(self._classes))

    def loss_of_query(self, W_Q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The loss for keys and values computed beforehand."""
        scores = (self.X @ W_Q) @ keys.transpose(1, 2) / self._scale
        logits = torch.softmax(scores, -1) @ values
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), self._classes.flatten())
