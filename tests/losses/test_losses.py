"""Gradient and curvature of every loss, against autograd."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

import hessianlens as hl
from hessianlens.losses import OutputCurvature, as_curvature
from hessianlens.operators.term import Factor, contract
from tests.oracles.comparison import assert_same
from tests.variants import losses, randn

F = randn(2, 5, 3, seed=20)


def _dense(curvature: OutputCurvature) -> torch.Tensor:
    """C as a matrix on all outputs of the batch."""
    column = ("j", "g") if curvature.coupled else ("i", "g")
    factors = curvature.factors(("i", "f"), column)
    if curvature.coupled:
        blocks = contract(factors, "sifjg")
    else:
        eye = Factor("e", "ij", torch.eye(5, dtype=F.dtype))
        blocks = contract((*factors, eye), "sifjg")
    return torch.block_diag(*blocks.reshape(2, 15, 15))


@pytest.mark.parametrize("name", losses(F))
def test_derivatives(name: str) -> None:
    loss = losses(F)[name]
    found = loss.derivatives(F)
    assert_same(found.gradient, jacobian(loss.value, F), "gradient")
    assert_same(_dense(found.curvature), hessian(loss.value, F).reshape(30, 30), "curvature")


def test_square_loss_is_the_mean_over_every_entry() -> None:
    Y = randn(2, 5, 3, seed=1)
    assert_same(hl.SquareLoss(Y).value(F), torch.nn.functional.mse_loss(F, Y))


def test_cross_entropy_is_that_of_torch() -> None:
    classes = torch.tensor([[0, 1, -100, 2, 2], [1, 1, 0, 0, -100]])
    expected = torch.nn.functional.cross_entropy(F.flatten(0, 1), classes.flatten())
    assert_same(hl.CrossEntropyLoss(classes).value(F), expected)


def test_a_batch_axis_may_be_left_out() -> None:
    assert_same(hl.SquareLoss(F[0]).value(F[:1]), hl.SquareLoss(F[:1]).value(F[:1]))
    number = as_curvature(randn(5), F)
    assert_same(_dense(number), _dense(as_curvature(randn(5).expand(2, 5), F)))


@pytest.mark.parametrize("target", [0, 1])
@pytest.mark.parametrize("gap", [20.0, 50.0, 300.0])
def test_cross_entropy_of_a_confident_prediction(gap: float, target: int) -> None:
    """Logits (0, -gap): with e = exp(-gap), C is e/(1+e)^2 (1 -1; -1 1), and a right prediction has g = p_2 (-1, 1)."""
    logits = torch.tensor([[[0.0, -gap]]], dtype=torch.float64)
    found = hl.CrossEntropyLoss(torch.tensor([target])).derivatives(logits)
    e = torch.tensor(-gap, dtype=torch.float64).exp()
    p = torch.stack([1 / (1 + e), e / (1 + e)])
    missing = p.flip(0)
    expected = torch.stack([-missing[0], p[1]]) if target == 0 else torch.stack([p[0], -missing[1]])
    assert_same(found.gradient[0, 0], expected, "gradient", 1e-14)
    pattern = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    assert_same(found.curvature.matrices[0, 0], e / (1 + e) ** 2 * pattern, "curvature", 1e-14)


def _curvatures() -> dict[str, OutputCurvature]:
    """Every form of curvature, of a loss that does not see tokens 0 and 3."""
    seen = torch.tensor([False, True, True, False, True])
    roots = randn(2, 5, 3, 2, seed=30) * seen[:, None, None]
    coupled = torch.einsum("sifr,sjgr->sifjg", roots, roots)
    given = {
        "number a token": randn(2, 5, seed=31) * seen,
        "matrix per token": torch.einsum("sifr,sigr->sifg", roots, roots),
        "low rank a token": hl.losses.LowRankTokenCurvature(roots),
        "coupled": coupled,
        "coupled, low rank": hl.losses.LowRankCoupledCurvature(roots),
    }
    return {name: as_curvature(one, F) for name, one in given.items()}


@pytest.mark.every_case
@pytest.mark.parametrize("name", _curvatures())
def test_curvature_at_the_tokens_that_carry_it(name: str) -> None:
    curvature, kept = _curvatures()[name], torch.tensor([1, 2, 4])
    change = randn(4, 2, 5, 3, seed=32)
    assert curvature.has_curvature().any(0).tolist() == [False, True, True, False, True]
    expected = curvature.apply(change.clone())[:, :, kept]
    assert_same(curvature.at(kept).apply(change[:, :, kept].clone()), expected)
