"""Chained linear attention."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.models import LinearAttentionStack, Transformer
from tests.oracles import comparison
from tests.variants import DOUBLE

TOKENS = torch.tensor([[1, 4, 2, 0], [3, 3, 0, 1]])


def assert_same(found: Tensor, expected: Tensor, what: str = "", relative: float = comparison.RELATIVE) -> None:
    comparison.assert_same(found.detach(), expected.detach(), what, relative)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_a_product_of_matrices(layers: int) -> None:
    model = LinearAttentionStack(layers, 4, vocab=5, context=4, seed=1, dtype=DOUBLE)
    x = model.token_embedding[TOKENS] + model.position_embedding
    for block in model.blocks:
        w = block.attention
        x = (x @ w.W_Q @ w.W_K.T @ x.transpose(1, 2) / 2).tril() @ x @ w.W_V @ w.W_O
    assert_same(model(TOKENS), x @ model.W_U)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_homogeneous_of_degree_three_to_the_depth(layers: int) -> None:
    small, large = (LinearAttentionStack(layers, 4, embedding_std=s, seed=1, dtype=DOUBLE)(TOKENS) for s in (1.0, 1.5))
    assert_same(large, 1.5 ** (3**layers) * small)


def test_it_is_a_transformer_with_three_parts_switched_off() -> None:
    stack = LinearAttentionStack(2, 4, heads=2, seed=3)
    same = Transformer(2, 4, heads=2, seed=3, attention="linear", residual_scale=0, mlp=False)
    assert torch.equal(stack(TOKENS), same(TOKENS))


@pytest.mark.parametrize("name", ["attention", "residual_scale", "mlp"])
def test_what_makes_it_a_stack_cannot_be_chosen(name: str) -> None:
    with pytest.raises(hl.InputError, match=f"{name}.*Transformer"):
        LinearAttentionStack(1, 4, **{name: 1})
