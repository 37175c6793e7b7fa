"""Stacks of linear attention: no MLP, no skip connection."""

from __future__ import annotations

import inspect
from typing import Any

from hessianlens.errors import expect
from hessianlens.models.transformer import Transformer

FIXED: dict[str, Any] = {"attention": "linear", "residual_scale": 0.0, "mlp": False}


class LinearAttentionStack(Transformer):
    """Linear attention chained ``layers`` times: ``x <- mask(Q K^T / sqrt(d_head)) V W_O`` (the paper's Figure 7).

    A `Transformer` with ``attention="linear"``, ``residual_scale=0`` and ``mlp=False``; every other argument is as
    there. Without biases the output is homogeneous of degree 3^layers in the embeddings.

    >>> import torch
    >>> tokens, options = torch.tensor([[1, 2, 3]]), {"seed": 1, "dtype": torch.float64}
    >>> one, two = (LinearAttentionStack(2, 4, embedding_std=s, **options)(tokens) for s in (1.0, 2.0))
    >>> torch.allclose(two, 2**9 * one)
    True
    """

    def __init__(self, layers: int = 1, d_model: int = 128, **options: Any) -> None:
        known = inspect.signature(Transformer).parameters
        for name in options:
            expect(name in known, f"options: got {name!r}, expected one of {', '.join(known)}.")
        for name, value in FIXED.items():
            expect(
                name not in options,
                f"{name}: got {options.get(name)!r}, expected no such argument, since a stack of linear attention has "
                f"{name}={value!r}; use Transformer to choose it.",
            )
        super().__init__(layers, d_model, **FIXED, **options)
