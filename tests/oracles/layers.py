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
from tests.oracles.properties import dense_form, frobenius_norm, trace_and_diagonal

PARTS = ("outer", "functional", "full")


def assert_witnesses_agree(
    layer,
    X: Tensor,
    loss: Loss,
    properties: Sequence[Callable[..., None]] = (dense_form,),
    X_kv: Tensor | None = None,
) -> None:
    """Properties of every block of every part against autograd, and the whole matrix-free product."""
    oracle = dense_hessian(layer, X, loss.value, X_kv)
    H = hl.attention_hessian(layer, X, loss, X_kv=X_kv)
    for part, row, column in itertools.product(PARTS, layer.parameters, layer.parameters):
        block, expected = H.part(part)[row, column], oracle.block(part, row, column)
        what, u = f"{part}[{row}, {column}]", _draw(block.shape[1], 12)
        rounding = 1e-14 * max(1.0, float(getattr(oracle, part).abs().max()))  # of the reference, beside other blocks
        if float(expected.abs().max()) < rounding and float(block.to_dense().abs().max()) == 0:
            assert float((block @ u).abs().max()) == 0, what
            continue
        assert_same(block @ u, expected @ u, f"{what} u")
        assert_same(block.written_out().to_dense(), expected, f"{what} from its terms")
        for holds in properties:
            try:
                holds(block, expected)
            except AssertionError as error:
                raise AssertionError(f"{what}: {error}") from error
    M = torch.stack([_draw(H.full.shape[1], seed) for seed in (13, 14, 15)], 1)
    for part in PARTS:
        assert_same(H.part(part)[:] @ M, getattr(oracle, part) @ M, f"{part} M")
    v = _draw(H.full.shape[1], 11)
    assert_same(H.full[:] @ v, hessian_vector_product(layer, X, loss.value, v, X_kv), "H v")


def assert_all_properties(layer, X: Tensor, loss: Loss, X_kv: Tensor | None = None) -> None:
    """As `assert_witnesses_agree`, with the norm, trace and diagonal of every block."""
    assert_witnesses_agree(layer, X, loss, (dense_form, frobenius_norm, trace_and_diagonal), X_kv)


def _draw(size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
