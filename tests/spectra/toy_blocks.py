"""Hessian blocks of small Transformers as dense matrices, whose spectra are known."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.spectra.products import symmetric_dense

BLOCKS = ("layer0.mlp.in", "embed", "layer0.attn.v", "layer1.attn.q")


@cache
def toy_block(name: str, d_model: int = 6) -> Tensor:
    """The Hessian of a block of a network of two layers, at its initialisation."""
    task = hl.tasks.Addition(digits=1)
    model = hl.models.Transformer(layers=2, d_model=d_model, heads=2, d_mlp=2 * d_model, dtype=torch.float64, seed=1)
    problem = hl.problem(model, task.batch(6, seed=0), task.cross_entropy)
    return symmetric_dense(hl.hessian(problem, name, method="hvp"), None)
