"""Closed form = matrix-free product = dense autograd, for every block and variant, to 1e-10."""

from __future__ import annotations

import itertools

import pytest
import torch

import hessianlens as hl
from hessianlens.layer import functional
from tests.oracles.autograd import dense_hessian, score_split
from tests.oracles.comparison import assert_same
from tests.oracles.layers import PARTS, assert_witnesses_agree
from tests.pairwise import pairwise
from tests.variants import (
    ALL_ACTIVATIONS,
    LENGTH,
    MASKS,
    QuadraticLoss,
    layers,
    losses,
    randn,
    recent_layers,
    self_attention,
    square_loss,
    tokens,
)


@pairwise(activation=ALL_ACTIVATIONS, mask=MASKS, d_k=[2, 4, 6], batch=[None, 3])
def test_every_block(activation: str, mask: str, d_k: int, batch: int | None) -> None:
    layer = self_attention(d_k, activation=ALL_ACTIVATIONS[activation](), **MASKS[mask](LENGTH))
    X = tokens(batch)
    assert_witnesses_agree(layer, X, square_loss(X))


@pairwise(kind={**layers(), **recent_layers()}, loss=losses(tokens(None)), batch=[None, 2])
def test_every_layer_and_loss(kind: str, loss: str, batch: int | None) -> None:
    X = tokens(batch)
    assert_witnesses_agree({**layers(), **recent_layers()}[kind], X, losses(X)[loss])


@pytest.mark.parametrize("length", [1, 2, 9])
@pytest.mark.parametrize("d_k", [1, 2, 7])
def test_short_and_long_sequences(length: int, d_k: int) -> None:
    """Both ways of holding the query-key blocks, at their limits."""
    X = tokens(2, length)
    assert_witnesses_agree(self_attention(d_k, causal=True), X, square_loss(X))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("activation", ["softmax", "linear", "sigmoid", "row_sum"])
def test_query_key_split(activation: str, temperature: float) -> None:
    layer = self_attention(3, activation=activation, temperature=temperature)
    X = tokens(2)
    H = hl.attention_hessian(layer, X, square_loss(X))
    t_outer, t_functional = score_split(layer, X, square_loss(X).value)
    assert_same(H.t_outer[:].to_dense(), t_outer, "t_outer")
    assert_same(H.t_functional[:].to_dense(), t_functional, "t_functional")
    v = randn(len(t_outer))
    assert_same(H.t_outer[:] @ v, t_outer @ v, "t_outer v")
    assert_same(H.t_functional[:] @ v, t_functional @ v, "t_functional v")
    assert_same((H.t_outer + H.t_functional).to_dense(), H.full[["Q", "K"], ["Q", "K"]].to_dense(), "sum")


def test_between_heads_only_the_outer_product_survives() -> None:
    X = tokens(2)
    H = hl.attention_hessian(layers()["two heads"], X, square_loss(X))
    names = list(H.full.rows)
    for row, column in itertools.product(names, names):
        if row[1] != column[1]:
            assert float(H.functional[row, column].frobenius_norm()) == 0
            assert float(H.outer[row, column].frobenius_norm()) > 0


@pytest.mark.parametrize("form", ["scalar", "number a token", "token", "low rank", "coupled", "low rank coupled"])
def test_forms_of_curvature_given_directly(form: str) -> None:
    """A quadratic loss with any curvature C: its Hessian through grad= and curvature=."""
    layer, X = self_attention(3), tokens(2)
    B, L, f = 2, LENGTH, 3
    root = randn(B, L, f, 2, seed=12)
    each = randn(B, L, f, f, seed=13)
    pairs = randn(B, L * f, L * f, seed=14)
    given = {
        "scalar": (0.7, torch.eye(L * f, dtype=X.dtype).expand(B, -1, -1) * 0.7),
        "number a token": (n := randn(B, L, seed=15), torch.diag_embed(n.repeat_interleave(f, 1))),
        "token": (S := each + each.mT, torch.stack([torch.block_diag(*S[b]) for b in range(B)])),
        "low rank": (
            hl.losses.LowRankTokenCurvature(root),
            torch.stack([torch.block_diag(*(root[b] @ root[b].mT)) for b in range(B)]),
        ),
        "coupled": ((P := pairs + pairs.mT).reshape(B, L, f, L, f), P),
        "low rank coupled": (
            hl.losses.LowRankCoupledCurvature(root),
            root.reshape(B, L * f, 2) @ root.reshape(B, L * f, 2).mT,
        ),
    }
    curvature, C = given[form]
    g = randn(B, L, f, seed=16)
    oracle = dense_hessian(layer, X, QuadraticLoss(layer(X), g, C, curvature).value)
    H = hl.attention_hessian(layer, X, grad=g, curvature=curvature)
    for part in PARTS:
        for row, column in itertools.product(layer.parameters, layer.parameters):
            expected = oracle.block(part, row, column)
            if float(expected.abs().max()) > 1e-14:
                assert_same(H.part(part)[row, column].to_dense(), expected, f"{part}[{row}, {column}]")
                assert_same(H.part(part)[row, column].frobenius_norm(), expected.norm(), "norm", 1e-9)
        M = randn(H.full.shape[1], 2, seed=17)
        assert_same(H.part(part) @ M, getattr(oracle, part) @ M, f"{part} M")


@pytest.mark.parametrize("rank", [1, 12])
def test_low_rank_curvature_stays_factored_only_where_that_is_smaller(rank: int) -> None:
    layer, X = self_attention(6), tokens(1, 9)
    root = randn(1, 9, 3, rank, seed=12)
    H = hl.attention_hessian(layer, X, grad=randn(1, 9, 3), curvature=hl.losses.LowRankTokenCurvature(root))
    names = {factor.name for term in H.outer["Q", "Q"].terms for factor in term.factors}
    assert ("R'Sk" in names) == (rank == 1)


def test_a_wrong_closed_form_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks must notice a sign error in one summand of one block."""
    right = functional.score_pair_matrix
    monkeypatch.setattr(functional, "score_pair_matrix", lambda head, gradient: -right(head, gradient))
    X = tokens(None)
    with pytest.raises(AssertionError, match="functional\\[Q, K\\]"):
        assert_witnesses_agree(self_attention(3), X, square_loss(X))


def test_factored_values_are_the_formulas_of_two_linear_layers() -> None:
    """``H_f(O,U) = c M_1^T (F - Y) (x) I`` and the outer blocks as Kronecker products."""
    layer, X = layers()["factored values"], tokens(None)
    Y = randn(LENGTH, 3, seed=6)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(Y))
    state = layer.attend(X[None])
    M1, D, c = (state.weights @ X)[0], state.output[0] - Y, 2 / Y.numel()
    gram = c * M1.T @ M1
    W_O, W_U = layer.W_O, layer.W_U
    assert_same(H.outer["O", "O"].to_dense(), torch.kron(gram, W_U @ W_U.T), "OO")
    assert_same(H.outer["U", "U"].to_dense(), torch.kron(W_O.T @ gram @ W_O, torch.eye(3, dtype=X.dtype)), "UU")
    assert_same(H.outer["O", "U"].to_dense(), torch.kron(gram @ W_O, W_U.contiguous()), "OU")
    mixed = torch.einsum("ad,bc->abcd", c * M1.T @ D, torch.eye(2, dtype=X.dtype)).reshape(8, 6)
    assert_same(H.functional["O", "U"].to_dense(), mixed, "functional OU")
    assert float(H.functional["O", "O"].frobenius_norm()) == float(H.functional["U", "U"].frobenius_norm()) == 0


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("kind", layers())
def test_tokens_without_a_loss_are_dropped(kind: str, coupled: bool) -> None:
    """A loss on the last two positions only: smaller factors, the same matrix."""
    layer, X = layers()[kind], tokens(2)

    def loss(F: torch.Tensor) -> torch.Tensor:
        seen = F[-2:]
        return _mixed(seen) if coupled else (seen**3).sum()

    custom = hl.losses.CustomLoss(loss)
    assert_witnesses_agree(layer, X, custom)
    H = hl.attention_hessian(layer, X, custom)
    assert {head.scores.shape for head in H.heads} == {(2, 2, LENGTH)}


def _mixed(seen: torch.Tensor) -> torch.Tensor:
    return torch.exp((seen[0] * seen[1]).sum() / 5)


def test_a_loss_without_any_token_has_a_zero_hessian() -> None:
    X = tokens(2)
    H = hl.attention_hessian(self_attention(), X, grad=torch.zeros(2, LENGTH, 3, dtype=X.dtype), curvature=0.0)
    assert float(H.full[:].frobenius_norm()) == 0
    assert float(H.full[:].to_dense().abs().max()) == 0
