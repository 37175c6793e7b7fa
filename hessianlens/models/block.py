"""One block of a decoder: attention, MLP, skip connections and norms."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlens.errors import check_number
from hessianlens.models.arguments import check_norm
from hessianlens.models.attention import Attention
from hessianlens.models.mlp import MLP

EPSILON = 1e-5


class TransformerBlock(nn.Module):
    """``y = r x + F(x)``, then ``y + MLP(y)``, with r the residual scale.

    ===========  ====================================================================
    norm         the block
    ===========  ====================================================================
    ``None``     ``y = r x + F(x)``,            ``out = y + MLP(y)``
    ``"pre"``    ``y = r x + F(norm1(x))``,     ``out = y + MLP(norm2(y))``
    ``"post"``   ``y = norm1(r x + F(x))``,     ``out = norm2(y + MLP(y))``
    ===========  ====================================================================

    Without an MLP the second step, its skip connection and norm2 are left out: ``out = y``.
    """

    def __init__(
        self,
        attention: Attention,
        mlp: MLP | None,
        *,
        norm: str | None = None,
        residual_scale: float = 1.0,
    ) -> None:
        super().__init__()
        check_norm(norm)
        self.norm = norm
        self.residual_scale = check_number("residual_scale", residual_scale)
        width, dtype = attention.d_model, attention.W_V.dtype
        self.norm1 = layer_norm(width, dtype) if norm is not None else None
        self.attention = attention
        self.norm2 = layer_norm(width, dtype) if norm is not None and mlp is not None else None
        self.mlp = mlp

    def attention_input(self, residual: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b l d"]:
        """X, what W_Q, W_K and W_V act on."""
        return self._normed(self.norm1, residual, "pre")

    def finish(self, z: Float[Tensor, "*b v"], residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The block from the heads' outputs z on; acts on every token by itself."""
        return self.join(self.attention.project(z), residual)

    def join(self, F: Float[Tensor, "*b d"], residual: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """The block from the attention output F on; acts on every token by itself."""
        y = self._normed(self.norm1, self.residual_scale * residual + F, "post")
        if self.mlp is None:
            return y
        return self._normed(self.norm2, y + self.mlp(self._normed(self.norm2, y, "pre")), "post")

    def forward(self, residual: Float[Tensor, "*b l d"]) -> Float[Tensor, "*b l d"]:
        """The residual stream behind this block."""
        return self.finish(self.attention.head_outputs(self.attention_input(residual)), residual)

    def _normed(self, norm: nn.LayerNorm | None, x: Tensor, place: str) -> Tensor:
        return norm(x) if norm is not None and self.norm == place else x

    def extra_repr(self) -> str:
        """How the parts are joined."""
        return f"norm={self.norm}, residual_scale={self.residual_scale}"


def layer_norm(width: int, dtype: torch.dtype) -> nn.LayerNorm:
    """Mean 0 and variance 1 over the features, then a gain of one and a shift of zero, both trainable."""
    return nn.LayerNorm(width, eps=EPSILON, dtype=dtype)
