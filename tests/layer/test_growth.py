"""Predicted growth exponents against measured slopes, for every activation."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

import hessianlens as hl
from hessianlens.layer import activation_powers, linear_attention_growth, linear_mlp_growth, predicted_growth
from tests.variants import ALL_ACTIVATIONS, randn, self_attention

BLOCKS = ["QQ", "QK", "KK", "VQ", "VK", "VV"]


def _norm(layer, sigma: float, part: str, row: str, column: str) -> float:
    X = sigma * randn(2, 6, 4, seed=5)
    g = randn(2, 6, 3, seed=6)
    H = hl.attention_hessian(layer, X, grad=g, curvature=1.0)
    return float(H.part(part)[row, column].to_dense().norm())


@pytest.mark.parametrize("norms", [(), ("query_norm",), ("query_norm", "key_norm")])
@pytest.mark.parametrize("activation", ["softmax", "linear", "tanh", "relu_normalised"])
@pytest.mark.parametrize("gates", [("gate",), ("value_gate",), ("gate", "value_gate")])
def test_slopes_of_a_gate(activation: str, norms: tuple[str, ...], gates: tuple[str, ...]) -> None:
    """Blocks of the gate itself and with all others, and those of the others, which it leaves as they are."""
    options = {name: hl.attention.QueryKeyNorm(eps=0.0) for name in norms}
    options |= {name: randn(4, 3, seed=30 + k) for k, name in enumerate(gates)}
    layer = self_attention(3, activation=activation, **options)
    X, g, roots = (randn(2, 6, *shape, seed=5 + k) for k, shape in enumerate([(4,), (3,), (3, 3)]))
    found = [hl.attention_hessian(layer, s * X, grad=g, curvature=roots @ roots.mT) for s in (1e-3, 2e-3)]
    known = {name: name in norms for name in ("query_norm", "key_norm")}
    for part, row, column in itertools.product(("outer", "functional", "full"), ("Q", "V", *gates), ("K", "V", *gates)):
        small, large = (float(H.part(part)[row, column].frobenius_norm()) for H in found)
        predicted = predicted_growth(activation, part, row, column, **known)
        assert (small == 0) == (predicted is None), (part, row, column)
        if predicted is not None:
            assert abs(math.log2(large / small) - predicted) < 0.05, (part, row, column)


@pytest.mark.expensive
@pytest.mark.parametrize("activation", ALL_ACTIVATIONS)
def test_slopes_at_small_scale(activation: str) -> None:
    make = ALL_ACTIVATIONS[activation]
    layer = self_attention(3, activation=make())
    for part, (row, column) in itertools.product(("outer", "functional"), BLOCKS):
        large, small = (_norm(layer, sigma, part, row, column) for sigma in (1e-2, 1e-3))
        expected = predicted_growth(make(), part, row, column)
        if expected is None:
            assert large == small == 0
        else:
            assert math.log10(large / small) == pytest.approx(expected, abs=0.02), f"{part} {row}{column}"


def test_t_functional_and_residual() -> None:
    assert predicted_growth("softmax", "t_functional", "Q", "K") == 3
    assert predicted_growth("softmax", "t_functional", "Q", "Q") is None
    assert predicted_growth("softmax", "functional", "Q", "Q", residual_power=1) == 6
    assert predicted_growth("softmax", "full", "Q", "Q") == 5
    assert predicted_growth("linear", "full", "Q", "Q") == 6
    assert predicted_growth("softmax", "outer", "QK", "QK") == 6


def test_single_matrix_slope() -> None:
    layer = hl.SingleMatrixAttention(randn(4, 4), randn(4, 3))
    for part in ("outer", "functional"):
        large, small = (_norm(layer, sigma, part, "QK", "QK") for sigma in (1e-2, 1e-3))
        assert math.log10(large / small) == pytest.approx(predicted_growth("softmax", part, "QK", "QK"), abs=0.02)


@pytest.mark.parametrize("depth", [1, 2])
def test_stacked_linear_attention(depth: int) -> None:
    weights = [[randn(4, 4, seed=10 * layer + k) for k in range(3)] for layer in range(depth)]

    def norm(sigma: float) -> float:
        X = sigma * randn(5, 4, seed=3)
        stack = [hl.SelfAttention(*w, activation="linear") for w in weights]

        def last(W_V: torch.Tensor) -> torch.Tensor:
            out = X
            for layer in stack[:-1]:
                out = layer(out)
            return stack[-1].with_parameters({"V": W_V})(out)

        J = torch.autograd.functional.jacobian(last, weights[-1][2]).reshape(20, 16)
        return float((J.T @ J).norm())

    assert math.log10(norm(1.0) / norm(0.1)) == pytest.approx(linear_attention_growth(depth), abs=1e-6)


def test_linear_mlp() -> None:
    weights = [randn(4, 4, seed=k) for k in range(4)]

    def norm(sigma: float) -> float:
        X = sigma * randn(5, 4, seed=9)
        J = torch.autograd.functional.jacobian(lambda W: X @ weights[0] @ W @ weights[2] @ weights[3], weights[1])
        return float((J.reshape(20, 16).T @ J.reshape(20, 16)).norm())

    assert math.log10(norm(1.0) / norm(0.1)) == pytest.approx(linear_mlp_growth(4), abs=1e-6)


def test_powers_of_a_function_without_whole_power_are_refused() -> None:
    with pytest.raises(hl.InputError, match="whole number"):
        activation_powers(hl.attention.activations.ElementwiseFunction(lambda t: t.abs() ** 1.5, "root"))
    for wrong in ((0,), (-1,)):
        with pytest.raises(hl.InputError, match="depth"):
            linear_attention_growth(*wrong)


def test_two_tokens_have_no_third_moment() -> None:
    """At L = 2 the functional query block of softmax grows as sigma^7, and the prediction says so."""
    layer = self_attention(3)

    def norm(sigma: float) -> float:
        H = hl.attention_hessian(layer, sigma * randn(2, 4, seed=5), grad=randn(2, 3, seed=6), curvature=1.0)
        return float(H.functional["Q", "Q"].to_dense().norm())

    assert predicted_growth("softmax", "functional", "Q", "Q", length=2) == 7
    assert math.log10(norm(1e-2) / norm(1e-3)) == pytest.approx(7, abs=0.02)


NORMED = {"both": (True, True), "queries": (True, False), "keys": (False, True), "neither": (False, False)}


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("norms", NORMED)
def test_exponents_behind_norms_of_queries_and_keys(norms: str, activation: str) -> None:
    """Every block of every part at two small scales, gains and a sink included."""
    given = dict(zip(("query_norm", "key_norm"), NORMED[norms], strict=True))
    gain = 1 + randn(3, seed=8) / 4
    options = {name: hl.attention.QueryKeyNorm(gain=gain, eps=0.0) for name, normed in given.items() if normed}
    sink = {"sink": randn(1, seed=9)} if activation == "softmax" else {}
    layer = hl.SelfAttention.random(4, 3, 4, dtype=torch.float64, activation=activation, **options, **sink)
    X, g = randn(6, 4, seed=5), randn(6, 4, seed=6)
    scales = (1e-3, 5e-4)
    large, small = (hl.attention_hessian(layer, s * X, grad=g, curvature=1.0) for s in scales)
    for part, row, column in itertools.product(("outer", "functional"), layer.parameters, layer.parameters):
        predicted = hl.layer.predicted_growth(activation, part, row, column, **given)
        norms_found = [float(H.part(part)[row, column].frobenius_norm()) for H in (large, small)]
        if predicted is None:
            assert max(norms_found) < 1e-15, (part, row, column)
        else:
            exponent = math.log(norms_found[0] / norms_found[1]) / math.log(2)
            assert abs(exponent - predicted) < 0.02, (part, row, column, exponent, predicted)
