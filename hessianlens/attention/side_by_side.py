"""Heads whose outputs stand side by side, and a linear map of every token as one of them.

A gate multiplies what a head puts out: ``F_i = sigmoid(W_G^T x_i) * O_i``. That is a function of two things side by
side, the output O of the head and the logits ``z_i = W_G^T x_i`` of the gate, and it acts on every token alone: for the
closed forms it is part of the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.attention.activations import as_activation
from hessianlens.attention.head import AttentionHead, RawScores
from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.attention.state import HeadState, ValuePort
from hessianlens.attention.tokens import KeyTokens


@dataclass(frozen=True, eq=False, repr=False)
class TokenwiseHead(AttentionHead):
    """``z_i = W_G^T x_i``, the logits of a gate: a head whose tokens attend to themselves alone; block G.

    Args:
        W_G: The weight.
        content: Tokens of its own, as many as those that enter the other heads; None for the same ones.
        width: Width of those that enter the other heads; None for that of its own.

    >>> TokenwiseHead(torch.ones(2, 1))(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    tensor([[3.],
            [7.]])
    """

    W_G: Tensor
    content: Tensor | None = None
    width: int | None = None

    names = ("G",)

    @property
    def d_model(self) -> int:
        """Width of the tokens that enter the heads beside it."""
        return self.W_G.shape[0] if self.width is None else self.width

    @property
    def d_v(self) -> int:
        """Width of the output."""
        return self.W_G.shape[1]

    def _check_shapes(self) -> None:
        """Any matrix fits."""

    def _raw_scores(self, X: Tensor, keys: KeyTokens) -> RawScores:
        raise NotImplementedError("it has no scores")

    def _value_map(self, X: Tensor) -> Tensor:
        return X @ self.W_G

    def _value_ports(self, X: Tensor, A: Tensor) -> tuple[dict[str, ValuePort], tuple[str, str] | None]:
        return {"G": ValuePort(X, "x", A, "x", self.d_v)}, None

    def attend(self, X: Float[Tensor, "s i d"], X_kv: Float[Tensor, "s l e"] | None = None) -> HeadState:
        """The map at a batch, with an identity for the weights; tokens of the keys take no part."""
        eye = torch.eye(X.shape[1], dtype=X.dtype, device=X.device).expand(len(X), -1, -1)
        own = X if self.content is None else self.content
        ports, _ = self._value_ports(own, eye)
        return HeadState(
            X, X.view_as(X), eye, eye.bool(), eye, self._value_map(own), 1.0, as_activation("linear"), {}, ports
        )


class SideBySideAttention(MultiHeadAttention):
    """``F = [F^1(X), ..., F^H(X)]``: heads of any width, whose outputs are not summed up.

    >>> from hessianlens.attention import SelfAttention
    >>> heads = [SelfAttention.random(4, 2, 3), TokenwiseHead(torch.ones(4, 1))]
    >>> SideBySideAttention(heads)(torch.zeros(5, 4)).shape
    torch.Size([5, 4])
    """

    widths = ("d_model",)

    @property
    def outputs(self) -> list[slice]:
        """Features of the output that every head puts out."""
        found, start = list[slice](), 0
        for head in self.heads:
            found.append(slice(start, start + head.d_v))
            start += head.d_v
        return found

    def _joined(self, outputs: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(outputs), -1)
