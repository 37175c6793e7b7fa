"""The two-layer MLP of a block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlens.errors import InputError, check_number, check_whole, describe_value
from hessianlens.models.arguments import check_norm
from hessianlens.models.attention import Attention


def _gelu_tanh(x: Tensor) -> Tensor:
    return nn.functional.gelu(x, approximate="tanh")


def _linear(x: Tensor) -> Tensor:
    return x


# Named functions, not lambdas: a model can be pickled.
MLP_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": nn.functional.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
    "linear": _linear,
}
"""Every activation that can be named in ``mlp_activation=``; ``gelu_tanh`` is GPT-2's."""


class MLP(nn.Module):
    """``f(x W_in + b_in) W_out + b_out``, with W_in d_model x d_mlp and W_out d_mlp x d_model.

    >>> MLP(4, 16, "gelu")
    MLP(d_model=4, d_mlp=16, activation=gelu)
    """

    def __init__(
        self,
        d_model: int,
        d_mlp: int,
        activation: str | Callable[[Tensor], Tensor] = "relu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        d_model, d_mlp = check_whole("d_model", d_model), check_whole("d_mlp", d_mlp)
        self.activation, self._name = _activation(activation)
        self.W_in = nn.Parameter(torch.zeros(d_model, d_mlp, dtype=dtype))
        self.b_in = nn.Parameter(torch.zeros(d_mlp, dtype=dtype))
        self.W_out = nn.Parameter(torch.zeros(d_mlp, d_model, dtype=dtype))
        self.b_out = nn.Parameter(torch.zeros(d_model, dtype=dtype))

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Every token by itself."""
        return self.activation(x @ self.W_in + self.b_in) @ self.W_out + self.b_out

    def extra_repr(self) -> str:
        """Widths and activation."""
        return f"d_model={self.W_in.shape[0]}, d_mlp={self.W_in.shape[1]}, activation={self._name}"


def _activation(given: object) -> tuple[Callable[[Tensor], Tensor], str]:
    if isinstance(given, str) and given in MLP_ACTIVATIONS:
        return MLP_ACTIVATIONS[given], given
    if callable(given):
        return given, str(getattr(given, "__name__", type(given).__name__))
    raise InputError(
        f"mlp_activation: got {describe_value(given)}, expected one of {', '.join(MLP_ACTIVATIONS)}, or a function of "
        "a tensor."
    )


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
