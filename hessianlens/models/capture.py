"""What one attention layer sees and hands on, at one batch."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionCapture:
    """The tensors around the attention of one block; ``model.head(head_outputs, residual, layer)`` gives the logits.

    Attributes:
        residual: The residual stream that enters the block, (B, L, d_model).
        attention_input: X, what W_Q, W_K and W_V act on, (B, L, d_model): the residual stream, normalised if pre-norm.
        head_outputs: ``z = concat_h(A^h V^h)``, before W_O, (B, L, heads * d_head).
    """

    residual: Float[Tensor, "*b l d"]
    attention_input: Float[Tensor, "*b l d"]
    head_outputs: Float[Tensor, "*b l v"]
