"""How spread out attention is."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessianlens.checks import check_dense, check_finite
from hessianlens.errors import expect


def attention_entropy(A: Float[Tensor, "*s i l"]) -> Float[Tensor, "*s i"]:
    """Entropy ``-sum_j A_ij log A_ij`` of every row, in nats: 0 for a one-hot row, log L for a uniform one.

    A row that sees nothing has entropy 0. Weights must not be negative; rows are taken as they are, so the value is an
    entropy only where they sum to one.

    >>> attention_entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 0.0]]))
    tensor([0.6931, 0.0000, 0.0000])
    """
    check_dense("A", A)
    expect(A.is_floating_point(), f"A: got dtype {A.dtype}, expected a floating dtype.")
    expect(A.ndim > 0 and A.numel() > 0, f"A: got shape {tuple(A.shape)}, expected rows of attention weights.")
    check_finite("A", A)
    lowest = float(A.detach().min())
    expect(
        lowest >= 0,
        f"A: got an attention weight of {lowest:.3g}, expected none below 0; entropy needs a distribution.",
    )
    return torch.special.entr(A).sum(-1)
