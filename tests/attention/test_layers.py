"""The layers compute what they say."""

from __future__ import annotations

import math

import pytest
import torch

import hessianlens as hl
from tests.oracles.comparison import assert_same
from tests.variants import randn, self_attention


def test_self_attention_is_scaled_dot_product_attention() -> None:
    layer = self_attention(4, 0, width=6, output=5, causal=True)
    X = randn(3, 7, 6)
    Q, K, V = (X @ w for w in layer.parameters.values())
    expected = torch.nn.functional.scaled_dot_product_attention(Q, K, V, is_causal=True)
    assert_same(layer(X), expected)
    assert_same(layer(X[0]), expected[0])


def test_temperature_divides_the_scores() -> None:
    X = randn(5, 4)
    cold = self_attention(3, 0, output=None, temperature=2.0)
    same = hl.SelfAttention(cold.W_Q / 2, cold.W_K, cold.W_V)
    assert_same(cold(X), same(X))


def test_single_matrix_equals_the_product_of_two() -> None:
    X = randn(5, 4)
    dual = self_attention(3, 0, output=None)
    single = hl.SingleMatrixAttention(dual.W_Q @ dual.W_K.T / math.sqrt(3), dual.W_V)
    assert_same(single(X), dual(X))


def test_factored_values_equal_their_product() -> None:
    X = randn(5, 4)
    factored = hl.attention.FactoredValueAttention(
        randn(4, 3), randn(4, 3, seed=1), randn(4, 2, seed=2), randn(2, 3, seed=3)
    )
    plain = hl.SelfAttention(factored.W_Q, factored.W_K, factored.W_O @ factored.W_U)
    assert_same(factored(X), plain(X))


def test_many_heads_add_up() -> None:
    X = randn(2, 5, 4)
    heads = [self_attention(2, h) for h in range(3)]
    assert_same(hl.MultiHeadAttention(heads)(X), sum(head(X) for head in heads))


def test_masks_of_a_batch_and_minus_infinite_bias_hide_alike() -> None:
    X = randn(2, 4, 3)
    seen = torch.rand(2, 4, 4, generator=torch.Generator().manual_seed(0)) < 0.6
    bias = torch.zeros(2, 4, 4, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    weights = [randn(3, 2, seed=k) for k in range(3)]
    assert_same(hl.SelfAttention(*weights, mask=seen)(X), hl.SelfAttention(*weights, bias=bias)(X))


def test_a_token_with_nothing_to_attend_to_outputs_zero() -> None:
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    layer = self_attention(None, 0, output=None, mask=mask)
    assert float(layer(randn(3, 4))[1].abs().max()) == 0


def test_random_layers_follow_their_seed() -> None:
    first, again, other = (hl.SelfAttention.random(8, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.W_Q, again.W_Q)
    assert not torch.equal(first.W_Q, other.W_Q)
    assert first.W_V.shape == (8, 8)
    assert float(first.W_Q.std()) == pytest.approx(1 / math.sqrt(8), rel=0.3)
