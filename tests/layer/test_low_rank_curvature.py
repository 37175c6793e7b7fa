"""Curvature of low rank behind row derivatives that are not symmetric: every block of every part is autograd's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.layer import expansion, scores
from hessianlens.losses import LowRankCoupledCurvature, LowRankTokenCurvature, OutputCurvature, SoftmaxCurvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from tests.oracles.layers import assert_witnesses_agree
from tests.oracles.properties import (
    adjoint_is_transpose,
    dense_form,
    frobenius_norm,
    product_with_matrix,
    product_with_vector,
    trace_and_diagonal,
)
from tests.variants import (
    DOUBLE,
    LENGTH,
    OUTPUT,
    QuadraticLoss,
    factored_values,
    moved_on,
    randn,
    rotary,
    self_attention,
    tokens,
)

ENTRIES = (product_with_vector, product_with_matrix, adjoint_is_transpose, dense_form, trace_and_diagonal)

NOT_SYMMETRIC = {"diagonal plus low rank": "relu_normalised", "dense": moved_on}
"""Activations whose derivative is far from symmetric, by the form in which it is kept."""

SEEN = torch.tensor([1, 2, 4])
"""Tokens that carry a loss; the others are dropped."""


LAYERS: dict[str, Callable[[object], object]] = {
    "self-attention": lambda a: self_attention(6, activation=a),
    "single matrix": lambda a: hl.SingleMatrixAttention(randn(4, 4, seed=7), randn(4, 3, seed=8), activation=a),
    "factored values": lambda a: factored_values(activation=a, causal=True),
    "two heads": lambda a: hl.MultiHeadAttention(
        [self_attention(6, activation=a), self_attention(3, seed=2, activation=moved_on)]
    ),
    "rotary": lambda a: rotary(activation=a),
}


def _roots(rank: int) -> Tensor:
    roots = torch.zeros(2, LENGTH, OUTPUT, rank, dtype=DOUBLE)
    roots[:, SEEN] = randn(2, len(SEEN), OUTPUT, rank, seed=12)
    return roots


def _by_token(matrices: Tensor) -> Tensor:
    """The matrices of the tokens of every sequence as one."""
    return torch.stack([torch.block_diag(*tokens) for tokens in matrices])


def _low_rank(rank: int) -> tuple[OutputCurvature, Tensor]:
    R = _roots(rank)
    return LowRankTokenCurvature(R), _by_token(R @ R.mT)


def _factored() -> tuple[OutputCurvature, Tensor]:
    """Of both signs, and with two factors that differ in more than signs."""
    R, mix = _roots(2), torch.tensor([[0.3, 2.0], [2.0, -1.5]], dtype=DOUBLE)
    return FactoredTokenCurvature(R, R @ mix), _by_token(R @ mix @ R.mT)


def _coupled() -> tuple[OutputCurvature, Tensor]:
    R = _roots(2)
    return LowRankCoupledCurvature(R), R.flatten(1, 2) @ R.flatten(1, 2).mT


def _probabilities() -> tuple[OutputCurvature, Tensor]:
    """Of a cross-entropy at the layer's outputs."""
    weight = torch.zeros(2, LENGTH, dtype=DOUBLE)
    weight[:, SEEN] = randn(2, len(SEEN), seed=13).abs()
    curvature = SoftmaxCurvature(weight, randn(2, LENGTH, OUTPUT, seed=14).softmax(-1))
    return curvature, _by_token(curvature.matrices)


CURVATURES: dict[str, Callable[[], tuple[OutputCurvature, Tensor]]] = {
    "low rank, kept": lambda: _low_rank(1),
    "low rank, multiplied out": lambda: _low_rank(3),
    "factored": _factored,
    "low rank, coupled": _coupled,
    "probabilities": _probabilities,
}


def assert_every_block_has(properties: tuple, kind: str, activation: str, form: str) -> None:
    layer, X = LAYERS[kind](NOT_SYMMETRIC[activation]), tokens(2)
    curvature, matrices = CURVATURES[form]()
    F, gradient = layer(X), torch.zeros(2, LENGTH, OUTPUT, dtype=DOUBLE)
    gradient[:, SEEN] = randn(2, len(SEEN), OUTPUT, seed=16)
    loss = QuadraticLoss(F, gradient, matrices, curvature)
    assert_witnesses_agree(layer, X, loss, properties)
    H = hl.attention_hessian(layer, X, loss)
    assert {head.scores.shape for head in H.heads} == {(2, len(SEEN), LENGTH)}


@pytest.mark.expensive
@pytest.mark.parametrize("form", CURVATURES)
@pytest.mark.parametrize("activation", NOT_SYMMETRIC)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_block(kind: str, activation: str, form: str) -> None:
    assert_every_block_has((*ENTRIES, frobenius_norm), kind, activation, form)


@pytest.mark.expensive
@pytest.mark.parametrize("form", CURVATURES)
@pytest.mark.parametrize("kind", LAYERS)
def test_every_block_with_nothing_formed_because_it_is_small(
    kind: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expansion, "_SMALL", 0)
    monkeypatch.setattr(scores, "_CHUNK_BYTES", 1)
    assert_every_block_has(ENTRIES, kind, "diagonal plus low rank", form)


@pytest.mark.parametrize("activation", NOT_SYMMETRIC)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_transposed_derivative_would_be_seen(kind: str, activation: str) -> None:
    layer = LAYERS[kind](NOT_SYMMETRIC[activation])
    for head in getattr(layer, "heads", (layer,)):
        J = head.attend(tokens(2)).at(SEEN).jacobian.to_dense()
        assert float((J - J.mT).norm()) > 0.1 * float(J.norm())
