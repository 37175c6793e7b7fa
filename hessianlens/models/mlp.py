"""The two-layer MLP of a block."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessianlens.errors import InputError, check_whole, shown


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
        f"mlp_activation: got {shown(given)}, expected one of {', '.join(MLP_ACTIVATIONS)}, or a function of a tensor."
    )
