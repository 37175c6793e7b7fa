"""Pairs, rank, gauge directions and the merged matrix."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd.functional import jacobian

import hessianlens as hl
from hessianlens.layer import eigenvalue_pairs, gauge_directions, numerical_rank, t_outer_rank, t_outer_rank_bound
from tests.oracles.comparison import assert_same
from tests.variants import layers, randn, self_attention, square_loss, tokens

SHAPES = [(L, d, k) for L in (2, 3, 4, 5, 7) for d in (3, 4) for k in (1, 2, 3, 4, 5)]


def _case(length: int, d: int, d_k: int, seed: int = 0):
    layer = hl.SelfAttention.random(d, d_k, seed=seed, dtype=torch.float64)
    X, Y = 2 * randn(length, d, seed=seed + 1), randn(length, d, seed=seed + 2)
    return layer, hl.attention_hessian(layer, X, hl.SquareLoss(Y))


@pytest.mark.parametrize("activation", ["softmax", "linear", "sigmoid", "relu_normalised"])
@pytest.mark.parametrize("d_k", [2, 4, 6])
def test_pairs_are_the_spectrum(d_k: int, activation: str) -> None:
    X = tokens(2)
    H = hl.attention_hessian(self_attention(d_k, activation=activation), X, square_loss(X))
    pairs = eigenvalue_pairs(H)
    dense = H.t_functional[:].to_dense()
    assert_same(pairs.eigenvalues(), torch.linalg.eigvalsh(dense))
    assert pairs.nonzero == numerical_rank(dense, 1e-12) == 2 * pairs.rank * d_k
    u, v = pairs.left[:, 0], pairs.right[:, 0]
    e = torch.eye(d_k, dtype=X.dtype)[0]
    for sign in (1, -1):
        vector = torch.cat([torch.kron(u, e), sign * torch.kron(v, e)])
        assert_same(dense @ vector, sign * pairs.values[0] * vector)


def test_pairs_of_a_chosen_head() -> None:
    X = tokens(2)
    H = hl.attention_hessian(layers()["two heads"], X, square_loss(X))
    whole = H.t_functional[:].to_dense()
    expected = torch.cat([eigenvalue_pairs(H, h).eigenvalues() for h in range(2)]).sort().values
    assert_same(torch.linalg.eigvalsh(whole), expected)
    with pytest.raises(hl.InputError, match="head"):
        eigenvalue_pairs(H, 2)
    single = hl.attention_hessian(layers()["single matrix"], X, square_loss(X))
    with pytest.raises(hl.InputError, match="single query-key matrix"):
        eigenvalue_pairs(single)


@pytest.mark.every_case
@pytest.mark.parametrize(("length", "d", "d_k"), SHAPES)
def test_rank_formula_and_bound(length: int, d: int, d_k: int) -> None:
    _, H = _case(length, d, d_k)
    rank = numerical_rank(H.t_outer[:].to_dense(), 1e-11)
    assert rank == t_outer_rank(length, d, d_k)
    assert rank <= t_outer_rank_bound(d, d_k)
    assert (rank == t_outer_rank_bound(d, d_k)) == (length >= d + 1)


@pytest.mark.parametrize("d_k", [1, 2, 4])
def test_gauge_directions_are_the_null_space(d_k: int) -> None:
    layer, H = _case(6, 4, d_k)
    gauge = gauge_directions(layer)
    dense = H.t_outer[:].to_dense()
    assert gauge.shape == (8 * d_k, d_k**2)
    assert float((dense @ gauge).norm()) < 1e-12 * float(dense.norm())
    assert 8 * d_k - numerical_rank(dense, 1e-11) == d_k**2


def test_t_outer_is_not_positive_semidefinite_in_general() -> None:
    lowest = min(float(torch.linalg.eigvalsh(_case(6, 4, 3, seed)[1].t_outer[:].to_dense())[0]) for seed in range(10))
    assert lowest < 0


def test_t_functional_is_the_gradient_of_the_merged_matrix() -> None:
    dual, H = _case(6, 4, 3)
    X, Y = 2 * randn(6, 4, seed=1), randn(6, 4, seed=2)
    merged = dual.W_Q @ dual.W_K.T / math.sqrt(3)

    def loss(W: torch.Tensor) -> torch.Tensor:
        return hl.SquareLoss(Y).value(hl.SingleMatrixAttention(W, dual.W_V)(X)[None])

    G = jacobian(loss, merged)
    assert_same(torch.linalg.svdvals(G) / math.sqrt(3), eigenvalue_pairs(H).values)


def test_single_matrix_hessian_is_the_kernel_of_t_outer() -> None:
    """T-outer = V^T U V with U the Hessian of the merged matrix at the same scores, over d_K."""
    dual, H = _case(6, 4, 3)
    X, Y = 2 * randn(6, 4, seed=1), randn(6, 4, seed=2)
    single = hl.SingleMatrixAttention(dual.W_Q @ dual.W_K.T / math.sqrt(3), dual.W_V)
    U = hl.attention_hessian(single, X, hl.SquareLoss(Y)).full["QK", "QK"].to_dense()
    theta = torch.cat([dual.W_Q.reshape(-1), dual.W_K.reshape(-1)])
    V = jacobian(lambda t: (t[:12].reshape(4, 3) @ t[12:].reshape(4, 3).T).reshape(-1), theta)
    assert_same(H.t_outer[:].to_dense(), V.T @ U @ V / 3)


def test_t_functional_vanishes_at_a_critical_point() -> None:
    layer, X = self_attention(3), tokens(2)
    H = hl.attention_hessian(layer, X, hl.SquareLoss(layer(X)))
    assert float(H.t_functional[:].frobenius_norm()) == 0
