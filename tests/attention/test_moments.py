"""Moments against their definition, and the contraction that never forms M_3."""

from __future__ import annotations

import pytest
import torch

import hessianlens as hl
from hessianlens import memory
from tests.oracles.comparison import assert_same
from tests.variants import randn, self_attention, square_loss, tokens


def _by_definition(A: torch.Tensor, X: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    second, third = [], []
    for row in A:
        mean = row @ X
        centred = [x - mean for x in X]
        second.append(sum(a * torch.outer(c, c) for a, c in zip(row, centred, strict=True)))
        third.append(sum(a * torch.einsum("a,b,c->abc", c, c, c) for a, c in zip(row, centred, strict=True)))
    return torch.stack(second), torch.stack(third)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "relu_normalised"])
def test_moments_are_their_definition(activation: str) -> None:
    A = self_attention(activation=activation).attend(tokens(1)).weights[0]
    X = tokens(None)
    second, third = _by_definition(A, X)
    u = randn(5, 4)
    assert_same(hl.attention.first_moment(A, X), A @ X)
    assert_same(hl.attention.second_moment(A, X), second)
    assert_same(hl.attention.third_moment(A, X), third)
    assert_same(hl.attention.third_moment_along(A, X, u), torch.einsum("ia,iabc->ibc", u, third))


def test_batches_are_taken_one_by_one() -> None:
    X = tokens(3)
    A = self_attention().attend(X).weights
    for k in range(3):
        assert_same(hl.attention.second_moment(A, X)[k], hl.attention.second_moment(A[k], X[k]))
        assert_same(hl.attention.third_moment_along(A, X, X)[k], hl.attention.third_moment_along(A[k], X[k], X[k]))


def test_hessian_sees_the_moments() -> None:
    """VV through M_1, the functional query block through M_3 along W_V g (softmax)."""
    layer, X = self_attention(3), tokens(1)
    H = hl.attention_hessian(layer, X, square_loss(X))
    A, g = H.heads[0].weights, H.loss.gradient
    M1 = hl.attention.first_moment(A, X)[0]
    c = 2 / g.numel()
    assert_same(H.full["V", "V"].to_dense(), torch.kron(c * M1.T @ M1, torch.eye(3, dtype=X.dtype)))
    M3 = hl.attention.third_moment_along(A, X, g @ layer.W_V.T)[0]
    inner = layer.W_K.T @ M3 @ layer.W_K / 3
    expected = sum(torch.kron(torch.outer(x, x), G) for x, G in zip(X[0], inner, strict=True))
    assert_same(H.functional["Q", "Q"].to_dense(), expected)


def test_third_moment_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda device: 1000)
    with pytest.raises(hl.InputError, match="third_moment_along"):
        hl.attention.third_moment(torch.full((2, 2), 0.5), torch.ones(2, 256))


def test_entropy() -> None:
    A = torch.full((1, 4), 0.25, dtype=torch.float64)
    assert_same(hl.attention.attention_entropy(A), torch.log(torch.tensor([4.0], dtype=torch.float64)))
    with pytest.raises(hl.InputError, match=r"-0\.5"):
        hl.attention.attention_entropy(torch.tensor([[1.5, -0.5]]))


@pytest.mark.parametrize("gap", [20.0, 60.0, 200.0])
def test_moments_next_to_a_single_weight(gap: float) -> None:
    """Weights 1/(1+e) and e/(1+e): second moment p q (x_2 - x_1)^2, third p q (p - q) (x_2 - x_1)^3."""
    T = torch.tensor([[0.0, -gap], [-gap, 0.0]], dtype=torch.float64)
    A, X = T.softmax(-1), torch.tensor([[1.0], [3.5]], dtype=torch.float64)
    e = torch.tensor(-gap, dtype=torch.float64).exp()
    spread, skew = e / (1 + e) ** 2, (1 - e) / (1 + e)
    third = spread * skew * 2.5**3 * torch.tensor([1.0, -1.0], dtype=torch.float64)
    assert_same(hl.attention.second_moment(A, X).reshape(-1), (spread * 2.5**2).expand(2), "second", 1e-14)
    assert_same(hl.attention.third_moment(A, X).reshape(-1), third, "third", 1e-14)
    along = hl.attention.third_moment_along(A, X, torch.full((2, 1), 2.0, dtype=torch.float64))
    assert_same(along.reshape(-1), 2 * third, "third, along a direction", 1e-14)
