"""The paths taken at realistic sizes, forced at small ones and compared at larger ones."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from hessianlens.operators import Factor, term
from tests.oracles.autograd import dense_hessian, hessian_vector_product, score_split
from tests.oracles.comparison import assert_same
from tests.oracles.layers import PARTS, assert_witnesses_agree
from tests.variants import ALL_ACTIVATIONS, DOUBLE, LENGTH, layers, losses, randn, self_attention, square_loss, tokens


def assert_norms_agree(layer, X, loss) -> None:
    oracle = dense_hessian(layer, X, loss.value)
    H = hl.attention_hessian(layer, X, loss)
    for part in PARTS:
        for (row, column), norm in H.part(part).norms().items():
            assert_same(norm, oracle.block(part, row, column).norm(), f"{part}[{row}, {column}]", 1e-8)


@pytest.mark.expensive
@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("d_k", [2, 6])
@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_activations(activation: str, d_k: int) -> None:
    layer = self_attention(d_k, activation=ALL_ACTIVATIONS[activation](), causal=True)
    X = tokens(3)
    assert_witnesses_agree(layer, X, square_loss(X))
    assert_norms_agree(layer, X, square_loss(X))


@pytest.mark.expensive
@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("loss", losses(tokens(None)))
@pytest.mark.parametrize("kind", layers())
def test_layers_and_losses(kind: str, loss: str) -> None:
    X = tokens(2)
    assert_witnesses_agree(layers()[kind], X, losses(X)[loss])
    assert_norms_agree(layers()[kind], X, losses(X)[loss])


@pytest.mark.usefixtures("as_if_large")
def test_slicing_takes_place(monkeypatch: pytest.MonkeyPatch) -> None:
    sliced = []
    original = term._contract_in_slices
    monkeypatch.setattr(term, "_contract_in_slices", lambda *args: sliced.append(1) or original(*args))
    letters = ("nj", "nl", "jl", "lm", "jm", "nm")
    factors = [Factor("A", x, randn(12, 12, seed=k)) for k, x in enumerate(letters)]
    expected = torch.einsum("nj,nl,jl,lm,jm,nm->", *(f.tensor for f in factors))
    assert_same(term.contract(factors, ""), expected)
    assert sliced


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "relu_normalised"])
@pytest.mark.parametrize(("d", "d_k", "length"), [(24, 20, 12), (16, 6, 40)])
def test_products_at_larger_sizes(d: int, d_k: int, length: int, activation: str) -> None:
    layer = hl.SelfAttention.random(d, d_k, d - 2, seed=1, dtype=DOUBLE, activation=activation, causal=True)
    X, Y = randn(4, length, d, seed=2), randn(4, length, d - 2, seed=3)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    v = randn(H.full.shape[1], seed=4)
    expected = hessian_vector_product(layer, X, hl.SquareLoss(Y).value, v)
    assert_same(H.full[:] @ v, expected, "full")
    assert_same(H.outer[:] @ v + H.functional[:] @ v, expected, "outer + functional")
    for row in H.full.rows:
        for column in H.full.columns:
            block = H.full[row, column]
            columns = block @ torch.eye(block.shape[1], dtype=DOUBLE)
            assert_same(block.frobenius_norm(), columns.norm(), f"norm [{row}, {column}]", 1e-9)


def test_a_mask_for_every_sequence() -> None:
    masks = torch.rand(3, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.6
    masks[:, :, 0] = True
    X = tokens(3)
    layer = self_attention(mask=masks)
    assert_witnesses_agree(layer, X, square_loss(X))
    for k in range(3):
        assert_same(layer(X)[k], self_attention(mask=masks[k])(X[k]), f"sequence {k}")


def test_curvature_without_gradient() -> None:
    """Tokens with a zero gradient still count through their curvature."""
    layer, X = self_attention(), tokens(2)
    loss = hl.SquareLoss(layer(X).detach())
    assert_witnesses_agree(layer, X, loss)
    assert float(hl.attention_hessian(layer, X, loss).outer["Q", "Q"].frobenius_norm()) > 0


def test_query_key_split_of_two_heads() -> None:
    X = tokens(2)
    multi = layers()["two heads"]
    H = hl.attention_hessian(multi, X, square_loss(X))
    names = list(H.t_outer.rows)
    total = (H.t_outer + H.t_functional).to_dense()
    assert_same(total, H.full[names, names].to_dense(), "sum")
    single = self_attention(2)
    alone = hl.attention_hessian(hl.MultiHeadAttention([single]), X, square_loss(X))
    assert_same(alone.t_outer[:].to_dense(), score_split(single, X, square_loss(X).value)[0], "one head")


@pytest.mark.parametrize("shift", [1e2, 1e4])
def test_norms_do_not_suffer_from_a_common_component(shift: float) -> None:
    """Tokens that share a large component: the closed forms must not cancel."""
    layer = hl.SelfAttention.random(8, 8, dtype=DOUBLE)
    weights = {name: w - w.mean(0) for name, w in layer.parameters.items() if name != "V"}
    layer = layer.with_parameters({name: w / shift for name, w in weights.items()})
    X, Y = shift + randn(2, 40, 8, seed=1), randn(2, 40, 8, seed=2)
    H = hl.attention_hessian(layer, X, grad=Y, curvature=1.0)
    for part in PARTS:
        for (row, column), norm in H.part(part).norms().items():
            dense = H.part(part)[row, column].to_dense().norm()
            if float(dense) > 0:
                assert_same(norm, dense, f"{part}[{row}, {column}]", 1e-6)


def test_tiny_and_huge_norms_in_single_precision() -> None:
    layer = hl.SelfAttention.random(6, 4, seed=1)
    for scale in (1e-5, 2.0):
        X, g = scale * randn(5, 6).float(), randn(5, 6, seed=1).float()
        single = hl.attention_hessian(layer, X, grad=g, curvature=1.0).outer["Q", "Q"].frobenius_norm()
        weights = {name: w.double() for name, w in layer.parameters.items()}
        double = hl.attention_hessian(layer.with_parameters(weights), X.double(), grad=g.double(), curvature=1.0)
        expected = double.outer["Q", "Q"].frobenius_norm()
        assert float(single) == pytest.approx(float(expected), rel=1e-3, abs=0)
        assert float(single) > 0


def test_blocks_do_not_see_later_changes_of_tokens_or_weights() -> None:
    layer, X = layers()["factored values"], tokens(2)
    H = hl.attention_hessian(layer, X, square_loss(X))
    expected = hl.attention_hessian(layer, X.clone(), square_loss(X)).full[:].to_dense()
    X.mul_(2)
    layer.W_U.mul_(3)
    assert_same(H.full[:].to_dense(), expected)


def test_numbers_that_overflow_are_named() -> None:
    X = tokens(2)
    with pytest.raises(hl.InputError, match="scores: not finite"):
        hl.attention_hessian(self_attention(), 1e160 * X, square_loss(X))
    with pytest.raises(hl.InputError, match="attention weights: not finite"):
        hl.attention_hessian(self_attention(activation="exp"), 1e3 * X, square_loss(X))


def test_weights_that_require_gradients_give_plain_numbers() -> None:
    X = tokens(2)
    layer = layers()["factored values"]
    layer = layer.with_parameters({name: w.clone().requires_grad_() for name, w in layer.parameters.items()})
    H = hl.attention_hessian(layer, X.requires_grad_(), square_loss(X.detach()))
    for row in H.full.rows:
        assert not H.full[row, row].diagonal().requires_grad


def test_grids_in_another_order_are_not_mixed_up() -> None:
    X = tokens(2)
    full = hl.attention_hessian(self_attention(), X, square_loss(X)).full
    one, other = full[["Q", "K"], ["Q", "K"]], full[["K", "Q"], ["K", "Q"]]
    v = randn(24)
    assert_same((one + other) @ v, one @ v + other @ v)
    with pytest.raises(hl.InputError, match="same order"):
        one.frobenius_inner(other)
    for wrong in (["Q", "Q"], []):
        with pytest.raises(hl.InputError, match="Block list"):
            full[wrong, :]


def test_rectangular_parts_have_their_adjoint() -> None:
    X = tokens(2)
    full = hl.attention_hessian(self_attention(2), X, square_loss(X)).full
    part = full[["V", "Q"], ["K"]]
    assert_same(part.adjoint().to_dense(), part.to_dense().T)
    assert_same(sum([full[:], full[:]]).to_dense(), 2 * full[:].to_dense())
