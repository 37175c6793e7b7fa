"""Blocks unfolded for sketches: complete sets of probes and of directions give the exact norm, for every variant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import hessianlens as hl
from hessianlens.errors import Refusal
from hessianlens.layer.sketch import Points, Unfolding, score_matrices, unfolding
from hessianlens.layer.sketch.unfolding import SeveralBlocks
from tests.variants import (
    ALL_ACTIVATIONS,
    DOUBLE,
    LENGTH,
    MASKS,
    factored_values,
    layers,
    losses,
    randn,
    rotary,
    self_attention,
    square_loss,
    tokens,
)

PARTS = ("outer", "functional", "full", "t_outer")


def _all_responses(block: Unfolding) -> Points:
    """To every matrix of a single entry."""
    left, right = torch.eye(block.left, dtype=DOUBLE), torch.eye(block.right, dtype=DOUBLE)
    return block.responses(left.repeat_interleave(block.right, 0)[:, None], right.repeat(block.left, 1)[:, None])


def _unfolded(H: hl.layer.AttentionHessian) -> Iterator[tuple[str, Unfolding, float]]:
    for part in PARTS:
        grid = H.part(part)
        for row in grid.rows:
            for column in grid.columns:
                block = H.sketch.block(part, row, column)
                if not isinstance(block, Refusal):
                    yield f"{part} {row} {column}", block, float(grid[row, column].frobenius_norm())


def _check(H: hl.layer.AttentionHessian) -> int:
    count = 0
    for name, block, norm in _unfolded(H):
        found = _all_responses(block)
        square = float(found.squares().sum())
        total = max(square + block.constant, 0.0) ** 0.5 * block.unit
        assert total == pytest.approx(norm, rel=1e-7, abs=1e-10), name
        gram = found.inner(found)
        sizes, turns = torch.linalg.eigh(gram)
        kept = sizes > 1e-12 * sizes.max().clamp(min=1e-300)
        if square > 0:
            directions = found.combined((turns[:, kept] / sizes[kept].sqrt()).T)
            assert float(block.small(directions).square().sum()) == pytest.approx(square, rel=1e-8), name
        assert block.probe_cost > 0 and block.direction_cost > 0 and block.set_up_cost >= 0
        count += 1
    return count


@pytest.mark.parametrize("layer", layers())
@pytest.mark.parametrize("loss", ["square", "cross-entropy", "by token"])
def test_complete_sets_of_probes_and_of_directions_give_the_norm(layer: str, loss: str) -> None:
    X = tokens(2)
    assert _check(hl.attention_hessian(layers()[layer], X, losses(X)[loss])) > 10


@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_activation_and_mask(activation: str, mask: str) -> None:
    X = tokens(2)
    layer = self_attention(activation=ALL_ACTIVATIONS[activation](), **MASKS[mask](LENGTH))
    assert _check(hl.attention_hessian(layer, X, square_loss(X))) > 10


def test_low_rank_curvature() -> None:
    X = tokens(2)
    C = hl.losses.LowRankTokenCurvature(randn(2, LENGTH, 3, 2, seed=11))
    assert _check(hl.attention_hessian(self_attention(), X, grad=randn(2, LENGTH, 3, seed=12), curvature=C)) > 10


@pytest.mark.parametrize("by_gram", [True, False])
def test_few_and_many_tokens(by_gram: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Gram matrix of tokens is for large widths, the entries of Y for many tokens: both at a small size."""
    before = unfolding.TokenPairs.__init__

    def chosen(self: unfolding.TokenPairs, u: torch.Tensor, v: torch.Tensor) -> None:
        before(self, u, v)
        self.by_gram = by_gram

    monkeypatch.setattr(unfolding.TokenPairs, "__init__", chosen)
    X = tokens(2)
    for loss in ("square", "cross-entropy"):
        assert _check(hl.attention_hessian(factored_values(), X, losses(X)[loss])) > 10


def test_matrices_that_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_matrices, "_KEPT_BYTES", 0)
    monkeypatch.setattr(score_matrices, "_CHUNK_BYTES", 2 * LENGTH * LENGTH * 8)
    X = tokens(2)
    assert _check(hl.attention_hessian(self_attention(), X, square_loss(X))) > 10


def test_a_wrong_summand_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the thin part of J the matrices are wrong, and the check above says so."""
    thin = score_matrices._transposed_times
    monkeypatch.setattr(score_matrices, "_transposed_times", lambda columns, W: 1.01 * thin(columns, W))
    X = tokens(2)
    with pytest.raises(AssertionError):
        _check(hl.attention_hessian(self_attention(), X, square_loss(X)))


def test_some_rows_of_a_weight() -> None:
    X, rows = tokens(2), slice(1, 3)
    H = hl.attention_hessian(self_attention(), X, losses(X)["cross-entropy"])
    for row, column in (("Q", "Q"), ("K", "K"), ("V", "V"), ("Q", "K"), ("K", "Q"), ("V", "K"), ("Q", "V")):
        block = H.sketch.block("full", row, column, (rows, rows))
        assert isinstance(block, Unfolding)
        square = float(_all_responses(block).squares().sum()) + block.constant
        cut = H.full[row, column].restricted((rows, slice(None)), (rows, slice(None)))
        assert square**0.5 * block.unit == pytest.approx(float(cut.frobenius_norm()), rel=1e-9), (row, column)


def test_several_blocks_side_by_side() -> None:
    X = tokens(2)
    heads = hl.MultiHeadAttention([self_attention(3), self_attention(3, seed=2)])
    H = hl.attention_hessian(heads, X, losses(X)["cross-entropy"])
    pairs = [(1, 0, 0), (2, 0, 1), (1, 1, 1)]
    for name in "QKV":
        blocks = [(times, H.sketch.block("full", (name, h), (name, k))) for times, h, k in pairs]
        both = SeveralBlocks(blocks)  # type: ignore[arg-type]
        norm = H.full[[(name, 0), (name, 1)], [(name, 0), (name, 1)]].frobenius_norm()
        found = _all_responses(both)
        square = float(found.squares().sum())
        assert square**0.5 * both.unit == pytest.approx(float(norm), rel=1e-9)
        sizes, turns = torch.linalg.eigh(found.inner(found))
        kept = sizes > 1e-12 * sizes.max()
        directions = found.combined((turns[:, kept] / sizes[kept].sqrt()).T)
        assert float(both.small(directions).square().sum()) == pytest.approx(square, rel=1e-8)


def test_what_has_no_sketch_says_why() -> None:
    X = tokens(2)
    coupled = hl.attention_hessian(self_attention(), X, losses(X)["coupling tokens"])
    assert coupled.sketch.block("full", "Q", "K").reason == "the loss couples the tokens of a sequence"
    turned = hl.attention_hessian(rotary(), X, square_loss(X))
    assert "rotary" in str(turned.sketch.block("full", "Q", "Q"))
    assert isinstance(turned.sketch.block("full", "O", "O"), Unfolding)
    pair = hl.attention_hessian(factored_values(), X, square_loss(X)).sketch
    assert "factors" in str(pair.block("full", "O", "U"))
    assert isinstance(pair.block("outer", "O", "U"), Unfolding)
