"""A lone attention layer with random weights, tokens and targets, from a cell's parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.attention import SelfAttention
from hessianlens.losses import SquareLoss
from hessianlens.theory import AttentionHessian, attention_hessian


@dataclass(frozen=True, eq=False)
class LoneLayer:
    """One sequence through one layer, under the mean square loss."""

    layer: SelfAttention
    X: Tensor
    Y: Tensor

    @property
    def loss(self) -> SquareLoss:
        """Mean over every entry of F - Y, squared."""
        return SquareLoss(self.Y)

    def hessian(self) -> AttentionHessian:
        """The closed form."""
        return attention_hessian(self.layer, self.X, self.loss)


def lone_layer(
    d_model: int,
    d_k: int,
    length: int,
    seed: int,
    *,
    activation: str = "softmax",
    causal: bool = False,
    weight_scale: float = 1.0,
    token_std: float = 1.0,
) -> LoneLayer:
    """Weights from N(0, weight_scale^2 / d_model), tokens from N(0, token_std^2), targets from N(0, 1).

    Weights depend on `seed` alone; tokens and targets on `seed + 1` alone.
    """
    layer = SelfAttention.random(d_model, d_k, seed=seed, dtype=torch.float64, activation=activation, causal=causal)
    layer = layer.with_parameters({name: weight_scale * w for name, w in layer.parameters.items()})
    generator = torch.Generator().manual_seed(seed + 1)
    X, Y = torch.randn(2, length, d_model, generator=generator, dtype=torch.float64)
    return LoneLayer(layer, token_std * X, Y)
