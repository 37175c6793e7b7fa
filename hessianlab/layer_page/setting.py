"""The layer, the tokens and the loss of the page of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hessianlab.layer_page.config import LayerConfig
from hessianlens.attention import SelfAttention
from hessianlens.attention.activations import ActivationLike
from hessianlens.losses import SquareLoss
from hessianlens.theory import AttentionHessian, attention_hessian


@dataclass(frozen=True, eq=False)
class Setting:
    """Everything that is measured at: one layer, one batch, one loss, and the Hessian of the three."""

    config: LayerConfig
    layer: SelfAttention
    X: Tensor
    loss: SquareLoss

    @cached_property
    def hessian(self) -> AttentionHessian:
        """The closed form."""
        return attention_hessian(self.layer, self.X, self.loss)

    @property
    def curvature(self) -> float:
        """The number c of ``d^2 l / dF^2 = c I``, for the mean over every entry."""
        return 2 / self.loss.targets.numel()

    @cached_property
    def residue(self) -> float:
        """What rounding may leave of an entry of a query-key block whose terms all cancel, as in one-hot attention.

        Those terms exceed the ones of the value block, which never cancel, by about the squared size of values and keys
        over the squared scale of the scores.
        """
        terms = float(self.hessian.outer["V", "V"].frobenius_norm())
        terms *= self.config.d_model**2 / (self.config.temperature**2 * self.config.d_k)
        return terms * torch.finfo(self.X.dtype).eps


def random_layer(
    config: LayerConfig, *, d_k: int | None = None, activation: ActivationLike | None = None
) -> SelfAttention:
    """The layer of a config, or one that differs from it in its query width or activation."""
    return SelfAttention.random(
        d_model=config.d_model,
        d_k=d_k or config.d_k,
        seed=config.seed,
        dtype=torch.float64,
        activation=activation or config.activation,
        causal=config.causal,
        temperature=config.temperature,
    )


def build(config: LayerConfig) -> Setting:
    """Weights from N(0, 1/d), tokens and targets from N(0, 1)."""
    generator = torch.Generator().manual_seed(config.seed + 1)
    shape = (2, config.batch, config.length, config.d_model)
    X, Y = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Setting(config, random_layer(config), X, SquareLoss(Y))
