"""Keys and values of other tokens than the queries: closed form = matrix-free product = dense autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention import CrossAttention
from hessianlens.errors import InputError
from hessianlens.layer import expansion
from tests.oracles.comparison import assert_same
from tests.oracles.layers import assert_all_properties, assert_witnesses_agree
from tests.pairwise import pairwise
from tests.variants import (
    ALL_ACTIVATIONS,
    LENGTH,
    OUTPUT,
    SCORE_OPTIONS,
    WIDTH,
    factored_values,
    losses,
    randn,
    self_attention,
    square_loss,
    tokens,
)

WIDE = 6


def keys(batch: int | None, length: int, width: int = WIDE) -> Tensor:
    return randn(length, width, seed=15) if batch is None else randn(batch, length, width, seed=15)


def cross_attention(d_k: int = 3, width: int = WIDE, **options) -> CrossAttention:
    shapes = ((WIDTH, d_k), (width, d_k), (width, OUTPUT))
    return CrossAttention(*(randn(*shape, seed=1 + k) / 2 for k, shape in enumerate(shapes)), **options)


def _mask(length: int) -> Tensor:
    seen = torch.rand(LENGTH, length, generator=torch.Generator().manual_seed(3)) < 0.6
    seen[:, 0] = True
    seen[2] = False  # a token with nothing to attend to
    return seen


def _block_mask(length: int) -> Tensor:
    blocks = torch.arange(LENGTH)[:, None] // 2 >= torch.arange(length) // 2
    return blocks[None]


MASKS = {
    "no mask": lambda length: {},
    "boolean mask with an empty row": lambda length: {"mask": _mask(length)},
    "block mask": lambda length: {"mask": _block_mask(length)},
    "additive bias": lambda length: {"bias": randn(LENGTH, length, seed=4)},
}


@pairwise(length=[1, 3, LENGTH, 8], mask=MASKS, more=SCORE_OPTIONS, batch=[None, 2], temperature=[1.0, 0.6])
def test_every_block(length: int, mask: str, more: str, batch: int | None, temperature: float) -> None:
    X, X_kv = tokens(batch), keys(batch, length)
    layer = cross_attention(temperature=temperature, **MASKS[mask](length), **SCORE_OPTIONS[more]())
    assert_all_properties(layer, X, square_loss(X), X_kv)


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_every_activation(activation: str) -> None:
    X, layer = tokens(None), cross_attention(activation=ALL_ACTIVATIONS[activation]())
    assert_all_properties(layer, X, square_loss(X), keys(None, 3))


@pytest.mark.parametrize("loss", losses(tokens(None)))
@pytest.mark.parametrize("length", [3, 8])
def test_every_loss(loss: str, length: int) -> None:
    X = tokens(2)
    assert_all_properties(cross_attention(2), X, losses(X)[loss], keys(2, length))


def test_heads_of_different_kinds() -> None:
    X, X_kv = tokens(2), keys(2, 7, WIDTH)
    single = hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8))
    layer = hl.MultiHeadAttention([self_attention(2), factored_values(sink=0.0), single, cross_attention(2, WIDTH)])
    assert_witnesses_agree(layer, X, square_loss(X), X_kv=X_kv)


def test_derivatives_kept_as_diagonal_plus_low_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """What large problems use: nothing is formed because it is small."""
    monkeypatch.setattr(expansion, "_SMALL", 0)
    X = tokens(2)
    assert_all_properties(cross_attention(), X, square_loss(X), keys(2, 8))


def test_its_own_tokens_as_keys_are_self_attention() -> None:
    layer, X = self_attention(3), tokens(2)
    H, other = (hl.attention_hessian(layer, X, square_loss(X), X_kv=given) for given in (None, X))
    assert_same(other.full[:].to_dense(), H.full[:].to_dense(), "full")
    assert_same(layer(X, X), layer(X), "output")


def test_a_loss_that_forgets_the_keys_is_noticed() -> None:
    """The comparison sees which tokens the keys were made of."""
    layer, X = self_attention(3), tokens(2)
    with pytest.raises(AssertionError):
        found = hl.attention_hessian(layer, X, square_loss(X), X_kv=X.flip(1) + 0.1).full["K", "K"].to_dense()
        assert_same(found, hl.attention_hessian(layer, X, square_loss(X)).full["K", "K"].to_dense(), "K")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cross_attention()(tokens(2)), "X_kv: none given"),
        (lambda: cross_attention()(tokens(2), keys(3, 4)), "expected 2 sequences"),
        (lambda: cross_attention()(tokens(2), keys(2, 4, 5)), "tokens of width 6"),
        (lambda: cross_attention()(tokens(2), keys(None, 4)), "expected 3 as X"),
        (lambda: cross_attention(causal=True)(tokens(2), keys(2, 4)), "expected as many keys as queries"),
        (lambda: cross_attention(mask=_mask(3))(tokens(2), keys(2, 4)), "mask: got shape"),
        (lambda: CrossAttention(randn(4, 3), randn(6, 2), randn(6, 3)), "as many columns as W_Q"),
        (lambda: CrossAttention(randn(4, 3), randn(6, 3), randn(5, 3)), "as many rows as W_K"),
        (lambda: self_attention(3)(tokens(2), keys(2, 4)), "tokens of width 4"),
    ],
)
def test_what_does_not_fit_is_refused(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()
