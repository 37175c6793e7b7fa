"""Heads with rotary positions: closed form = matrix-free product = dense autograd, for every block."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.attention.rotary import rotary_tables
from hessianlens.attention.token_maps import Rotation
from hessianlens.errors import InputError
from hessianlens.layer import expansion
from hessianlens.layer.query_key import eigenvalue_pairs
from tests.oracles.autograd import dense_hessian
from tests.oracles.comparison import assert_same
from tests.oracles.layers import PARTS, assert_all_properties
from tests.variants import (
    ALL_ACTIVATIONS,
    DOUBLE,
    LENGTH,
    MASKS,
    factored_values,
    losses,
    randn,
    rotary,
    square_loss,
    tokens,
)


@pytest.mark.expensive
@pytest.mark.parametrize("batch", [None, 2])
@pytest.mark.parametrize("d_k", [2, 6])
@pytest.mark.parametrize("mask", MASKS)
def test_every_block(mask: str, d_k: int, batch: int | None) -> None:
    X = tokens(batch)
    assert_all_properties(rotary(d_k, **MASKS[mask](LENGTH)), X, square_loss(X))


@pytest.mark.expensive
@pytest.mark.parametrize("activation", [name for name in ALL_ACTIVATIONS if name != "softmax"])
def test_every_activation(activation: str) -> None:
    X = tokens(None)
    assert_all_properties(rotary(activation=ALL_ACTIVATIONS[activation](), causal=True), X, square_loss(X))


@pytest.mark.expensive
@pytest.mark.parametrize("loss", losses(tokens(None)))
def test_every_loss(loss: str) -> None:
    """Curvatures by number, by token, of low rank, and coupling tokens."""
    X = tokens(2)
    assert_all_properties(rotary(causal=True, temperature=0.7), X, losses(X)[loss])


@pytest.mark.long
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "row_sum"])
def test_derivatives_kept_as_diagonal_plus_low_rank(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large problems use: nothing is formed because it is small."""
    monkeypatch.setattr(expansion, "_SMALL", 0)
    X = tokens(2)
    assert_all_properties(rotary(activation=activation), X, square_loss(X))
    H = hl.attention_hessian(rotary(activation=activation), X, square_loss(X))
    factors = [f for term in H.functional["Q", "K"].terms for f in term.factors]
    assert not any({"l", "m"} <= set(f.indices) for f in factors)


@pytest.mark.parametrize("length", [1, 9])
def test_short_and_long_sequences(length: int) -> None:
    X = tokens(2, length)
    assert_all_properties(rotary(2, length, causal=True), X, square_loss(X))


def test_positions_of_each_sequence_and_maps_that_are_no_rotations() -> None:
    X = tokens(2)
    cos, sin = randn(2, 2, LENGTH, 4, seed=20)
    assert_all_properties(rotary(cos=cos, sin=sin), X, square_loss(X))


def test_several_heads_of_different_kinds() -> None:
    X = tokens(2)
    layer = hl.MultiHeadAttention([rotary(causal=True), factored_values(), rotary(2, seed=30)])
    oracle = dense_hessian(layer, X, square_loss(X).value)
    H = hl.attention_hessian(layer, X, square_loss(X))
    for part in PARTS:
        assert_same(H.part(part)[:].to_dense(), getattr(oracle, part), part)


@pytest.mark.parametrize("coupled", [False, True])
def test_tokens_without_a_loss_are_dropped(coupled: bool) -> None:
    layer, X = rotary(causal=True), tokens(2)

    def loss(F: Tensor) -> Tensor:
        return torch.exp((F[-2] * F[-1]).sum() / 5) if coupled else (F[-2:] ** 3).sum()

    assert_all_properties(layer, X, hl.losses.CustomLoss(loss))
    H = hl.attention_hessian(layer, X, hl.losses.CustomLoss(loss))
    assert H.heads[0].scores.shape == (2, 2, LENGTH)
    assert H.heads[0].score_ports["Q"].matrices.shape == (2, 2, LENGTH, 4)
    assert H.heads[0].score_ports["K"].vectors.shape == (2, 2, LENGTH, 4)


def test_split_at_the_scores_adds_up() -> None:
    X = tokens(2)
    H = hl.attention_hessian(rotary(), X, square_loss(X))
    both = H.full[["Q", "K"], ["Q", "K"]].to_dense()
    assert_same((H.t_outer + H.t_functional).to_dense(), both, "sum")
    with pytest.raises(InputError, match="rotary positions"):
        eigenvalue_pairs(H)


def test_tokens_turned_alike_are_attention_without_positions() -> None:
    cos, sin = (table[3:4].expand(LENGTH, -1) for table in rotary_tables(4, 4, dtype=DOUBLE))
    turned, X = rotary(cos=cos, sin=sin), tokens(2)
    plain = hl.attention.FactoredValueAttention(*turned.parameters.values())
    assert_same(turned(X), plain(X), "output")
    H, expected = (hl.attention_hessian(layer, X, square_loss(X)).full[:].to_dense() for layer in (turned, plain))
    assert_same(H, expected, "Hessian")


def test_scores_depend_on_distances_only() -> None:
    """Shifting all positions changes nothing: what rotary positions are for."""
    cos, sin = rotary_tables(LENGTH + 7, 4, dtype=DOUBLE)
    X = tokens(None)
    early, late = (rotary(cos=cos[k : k + LENGTH], sin=sin[k : k + LENGTH]).attend(X[None]).scores[0] for k in (0, 7))
    assert_same(early, late, "scores")


def test_maps_in_full() -> None:
    R, v, u = Rotation(*randn(2, 1, 3, 4, seed=2)), randn(2, 3, 4, seed=3), randn(2, 5, 4, seed=4)
    matrices = R.matrices()[0]
    assert_same(R.turn(v), torch.einsum("neb,snb->sne", matrices, v), "turn")
    assert_same(R.turn_own_back(v), torch.einsum("neb,sne->snb", matrices, v), "turn own back")
    assert_same(R.turn_back(u), torch.einsum("neb,sme->snmb", matrices, u), "turn back")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cos": torch.ones(5, 3, dtype=DOUBLE)}, "cos: got shape"),
        ({"sin": torch.ones(4, 4, dtype=DOUBLE)}, "sin: got shape"),
        ({"cos": torch.ones(5, 4)}, "different dtype"),
        ({"cos": torch.full((5, 4), torch.nan, dtype=DOUBLE)}, "non-finite"),
    ],
)
def test_wrong_tables_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        rotary(**change)


def test_odd_widths_and_other_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="even"):
        rotary(3, cos=torch.ones(5, 3, dtype=DOUBLE), sin=torch.ones(5, 3, dtype=DOUBLE))
    with pytest.raises(InputError, match="even"):
        rotary_tables(5, 3)
    with pytest.raises(InputError, match="2 sequences of 6 tokens"):
        rotary()(tokens(2, 6))
