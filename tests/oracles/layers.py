"""Closed form = matrix-free product = dense autograd, for every block of every part of a lone layer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.losses import Loss
from tests.oracles.autograd import dense_hessian, hessian_vector_product
from tests.oracles.comparison import assert_same
from tests.oracles.properties import dense_form

PARTS = ("outer", "functional", "full")


def assert_witnesses_agree(
    layer, X: Tensor, loss: Loss, properties: Sequence[Callable[..., None]] = (dense_form,)
) -> None:
    """Properties of every block of every part against autograd, and the whole matrix-free product."""
    oracle = dense_hessian(layer, X, loss.value)
    H = hl.attention_hessian(layer, X, loss)
    for part, row, column in itertools.product(PARTS, layer.parameters, layer.parameters):
        block, expected = H.part(part)[row, column], oracle.block(part, row, column)
        if float(expected.abs().max()) < 1e-14 and float(block.to_dense().abs().max()) == 0:
            continue
        for holds in properties:
            try:
                holds(block, expected)
            except AssertionError as error:
                raise AssertionError(f"{part}[{row}, {column}]: {error}") from error
    v = torch.randn(H.full.shape[1], generator=torch.Generator().manual_seed(11), dtype=torch.float64)
    assert_same(H.full[:] @ v, hessian_vector_product(layer, X, loss.value, v), "H v")
