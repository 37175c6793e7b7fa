"""Dense matrices of small layers: no closed form is built for them, and the two ways agree."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from hessianlens.layer import dense, hessian
from hessianlens.operators import dense_block
from tests.oracles.autograd import dense_hessian
from tests.oracles.comparison import assert_same
from tests.variants import ALL_ACTIVATIONS, layers, losses, randn, self_attention, square_loss, tokens

PARTS = ("outer", "functional", "full")


def refuse(*_: object) -> None:
    pytest.fail("a closed form was built")


@pytest.mark.parametrize("chunk", [1, 2**20])
@pytest.mark.parametrize("loss", ["square", "cross-entropy", "by token"])
@pytest.mark.parametrize("kind", layers())
def test_nothing_is_built_for_a_small_layer(kind: str, loss: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tokens at a time, or all at once."""
    monkeypatch.setattr(hessian, "_BLOCK_TERMS", dict.fromkeys(hessian._BLOCK_TERMS, refuse))
    monkeypatch.setattr(dense, "_CHUNK_BYTES", chunk)
    layer, X = layers()[kind], tokens(2)
    oracle = dense_hessian(layer, X, losses(X)[loss].value)
    H = hl.attention_hessian(layer, X, losses(X)[loss])
    for part in PARTS:
        assert_same(H.part(part).to_dense(), getattr(oracle, part), part)
    names = list(layer.parameters)
    upside_down = H.full[names[::-1], names[:2]].to_dense()
    blocks = [torch.cat([oracle.block("full", r, c) for c in names[:2]], 1) for r in names[::-1]]
    assert_same(upside_down, torch.cat(blocks), "rows turned around")
    assert_same((2.0 * H.outer + H.functional).to_dense(), oracle.outer + oracle.full, "combination")


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "row_sum", "softmax, soft-capped", "user row function"])
def test_closed_form_and_short_way_agree_for_every_part(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, X = self_attention(activation=ALL_ACTIVATIONS[activation](), causal=True), tokens(2)
    short = hl.attention_hessian(layer, X, square_loss(X))
    parts = (*PARTS, "t_outer", "t_functional")
    found = {part: short.part(part).to_dense() for part in parts}
    monkeypatch.setattr(dense, "_WORKSPACE_BYTES", 0)
    long = hl.attention_hessian(layer, X, square_loss(X))
    for part in parts:
        assert_same(found[part], long.part(part).to_dense(), part)


def test_numbers_out_of_range_take_the_closed_form() -> None:
    """Products of two factors would not fit into single precision, the entries do."""
    layer, X, g = hl.SelfAttention.random(6, 4, seed=1), 1e-12 * randn(5, 6).float(), randn(5, 6, seed=1).float()
    H = hl.attention_hessian(layer, X, grad=1e12 * g, curvature=1e12)
    assert not H._tangent.dense._fit
    double = layer.with_parameters({name: w.double() for name, w in layer.parameters.items()})
    expected = hl.attention_hessian(double, X.double(), grad=1e12 * g.double(), curvature=1e12).full.to_dense()
    assert_same(H.full.to_dense().double(), expected, relative=1e-4)


def test_a_wrong_short_way_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    right = dense.HeadEntries.functional_response
    monkeypatch.setattr(dense.HeadEntries, "functional_response", lambda self, *at: -right(self, *at))
    layer, X = self_attention(), tokens(2)
    oracle = dense_hessian(layer, X, square_loss(X).value)
    H = hl.attention_hessian(layer, X, square_loss(X))
    assert_same(H.outer.to_dense(), oracle.outer, "outer")
    with pytest.raises(AssertionError, match="relative error"):
        assert_same(H.full.to_dense(), oracle.full, "full")


def test_blocks_below_the_diagonal_are_written_by_tiles_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, X = self_attention(), tokens(2)
    H = hl.attention_hessian(layer, X, square_loss(X))
    at_once = H.full.to_dense()
    monkeypatch.setattr(dense_block, "_ROWS", 5)
    monkeypatch.setattr(dense_block, "_COLUMNS", 7)
    by_tiles = H.full.to_dense()
    assert torch.equal(by_tiles, at_once)
    assert_same(by_tiles, by_tiles.T)
