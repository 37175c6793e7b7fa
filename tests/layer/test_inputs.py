"""The curvature at a layer's inputs, and through it the blocks of a first layer and of embeddings, beside autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian

import hessianlens as hl
from hessianlens.attention.activations import SoftCapped
from hessianlens.layer.inputs import input_curvature
from tests.oracles.comparison import assert_same
from tests.variants import randn, sharpened

LENGTH, WIDTH = 5, 3
LAYERS = {
    "plain": {},
    "causal, warm": {"causal": True, "temperature": 2.0},
    "sink": {"sink": 0.5},
    "bias, learned sink": {"bias": randn(LENGTH, LENGTH, seed=7), "sink": torch.tensor(-0.3, dtype=torch.float64)},
    "sigmoid, causal": {"activation": "sigmoid", "causal": True},
    "linear": {"activation": "linear"},
    "rows that are not symmetric": {"activation": SoftCapped(2.0), "causal": True},
    "activation of the user's": {"activation": sharpened},
}


def layer_of(seed: int, **options: object) -> hl.SelfAttention:
    return hl.SelfAttention.random(WIDTH, 2, seed=seed, dtype=torch.float64, **options)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_both_parts_are_those_of_autograd(name: str, residual: bool) -> None:
    layer, X, g = layer_of(1, **LAYERS[name]), randn(LENGTH, WIDTH), randn(LENGTH, WIDTH, seed=2)
    root = randn(LENGTH, WIDTH, WIDTH, seed=3)
    C = root @ root.mT

    def output(X: Tensor) -> Tensor:
        return X + layer(X) if residual else layer(X)

    at = output(X)

    def loss(X: Tensor) -> Tensor:
        moved = output(X) - at
        return (g * moved).sum() + torch.einsum("if,ifh,ih->", moved, C, moved) / 2

    found = input_curvature(layer, X, g, C, residual)
    J = jacobian(output, X)
    assert_same(found.ggn, torch.einsum("ifka,ifh,ihlb->kalb", J, C, J), "Gauss-Newton", 1e-10)
    assert_same(found.full, hessian(loss, X), "full", 1e-10)
    assert_same(found.gradient, torch.einsum("ifka,if->ka", J, g), "gradient", 1e-10)
    coupled = torch.zeros(LENGTH, WIDTH, LENGTH, WIDTH).double()
    coupled.diagonal(dim1=0, dim2=2).copy_(C.movedim(0, -1))
    again = input_curvature(layer, X, g, coupled, residual)
    assert_same(again.full, found.full, "the same as a curvature of all pairs of tokens", 1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_the_curvature_passes_layer_after_layer(name: str) -> None:
    """Of three layers the last one couples the tokens, and the curvature goes on through the second."""
    layers, X = [layer_of(seed, **LAYERS[name]) for seed in range(3)], randn(LENGTH, WIDTH)

    def loss(X: Tensor, start: int = 0) -> Tensor:
        for layer in layers[start:]:
            X = X + layer(X)
        return X.square().sum() / 2

    at = [X]
    for layer in layers:
        at.append(at[-1] + layer(at[-1]))
    grad, C = at[-1], torch.eye(WIDTH).double().expand(LENGTH, -1, -1)
    for layer, entering in zip(reversed(layers), reversed(at[:-1]), strict=True):
        found = input_curvature(layer, entering, grad, C, residual=True)
        grad, C = found.gradient, found.full
    assert_same(C, hessian(loss, X), "at the tokens", 1e-10)


@pytest.mark.parametrize("name", LAYERS)
def test_blocks_of_the_first_of_two_layers(name: str) -> None:
    """Each part of the first layer's block sees the curvature that the second passes on; the loss is half a square."""
    first, second, X, Y = layer_of(1, **LAYERS[name]), layer_of(2), randn(LENGTH, WIDTH), randn(LENGTH, WIDTH, seed=4)
    inner = first(X)
    residual = inner + second(inner) - Y
    above = input_curvature(second, inner, residual, torch.eye(WIDTH).double().expand(LENGTH, -1, -1), residual=True)
    H = hl.attention_hessian(first, X, grad=above.gradient, curvature=above.full)
    for row in "QKV":

        def loss(W: Tensor, row: str = row) -> Tensor:
            Z = replace(first, **{f"W_{row}": W})(X)
            return (Z + second(Z) - Y).square().sum() / 2

        W = first.parameters[row]
        expected = hessian(loss, W).reshape(W.numel(), W.numel())
        assert_same(H.full[row, row].to_dense(), expected, f"{row} of the first layer", 1e-9)


def test_the_embedding_of_a_one_layer_model_is_a_sum_over_occurrences() -> None:
    layer, table, tokens = layer_of(1, causal=True), randn(4, WIDTH, seed=5), torch.tensor([0, 2, 2, 1, 0])
    Y = randn(LENGTH, WIDTH, seed=4)
    found = input_curvature(layer, table[tokens], layer(table[tokens]) - Y, torch.eye(WIDTH).double().expand(5, -1, -1))
    one_hot = torch.nn.functional.one_hot(tokens, 4).double()
    summed = torch.einsum("kv,kalb,lw->vawb", one_hot, found.full, one_hot)
    assert_same(summed, hessian(lambda E: (layer(E[tokens]) - Y).square().sum() / 2, table), "embedding", 1e-10)
    assert not summed[3].any()


def test_bad_input() -> None:
    X, C = randn(LENGTH, WIDTH), torch.zeros(LENGTH, WIDTH, WIDTH).double()
    with pytest.raises(hl.InputError, match="expected a SelfAttention without norms and gates"):
        input_curvature(layer_of(1, query_norm="rms"), X, X, C)
    with pytest.raises(hl.InputError, match=r"curvature: got shape \(5, 3\), expected \(5, 3, 3\)"):
        input_curvature(layer_of(1), X, X, X)
    with pytest.raises(hl.InputError, match=r"X: got shape \(5,\)"):
        input_curvature(layer_of(1), X[:, 0], X, C)
    with pytest.raises(hl.InputError, match="residual: got values of width 2 beside tokens of width 3"):
        narrow = hl.SelfAttention.random(WIDTH, 2, 2, dtype=torch.float64)
        input_curvature(narrow, X, X[:, :2], C[:, :2, :2], residual=True)
