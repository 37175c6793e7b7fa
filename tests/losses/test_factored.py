"""A curvature given as two thin factors, or in any other form, is the matrix that it stands for."""

from __future__ import annotations

import pytest
import torch

from hessianlens.losses import LowRankTokenCurvature, ScalarCurvature, SoftmaxCurvature, TokenCurvature, as_curvature
from hessianlens.losses.curvature_forms import FactoredTokenCurvature
from hessianlens.operators.term import contract
from tests.oracles.comparison import assert_same
from tests.variants import DOUBLE, randn


def _pair() -> tuple[FactoredTokenCurvature, TokenCurvature]:
    J, signs = randn(2, 3, 4, 2), torch.tensor([1.0, -2.0], dtype=DOUBLE)
    return FactoredTokenCurvature(J, J * signs), TokenCurvature((J * signs) @ J.transpose(-1, -2))


def test_factors_and_products_are_those_of_the_matrix() -> None:
    thin, full = _pair()
    letters = (("i", "f"), ("i", "g"))
    assert_same(contract(thin.factors(*letters), "sifg"), full.matrices, "C")
    left, right = randn(2, 5, 4, seed=1), randn(2, 6, 4, seed=2)
    assert_same(thin.between(left, right), full.between(left, right), "left C right'")
    kept = torch.tensor([2, 0])
    assert_same(thin.at(kept).between(left, right), full.at(kept).between(left, right), "some tokens")


def test_a_token_without_curvature_is_seen() -> None:
    thin, _ = _pair()
    thin.left[0, 1], thin.right[1, 2] = 0, 0
    expected = [[True, False, True], [True, True, False]]
    assert thin.has_curvature().tolist() == expected


@pytest.mark.parametrize("form", ["number", "matrix", "root", "factors", "softmax", "softmax, near one-hot"])
def test_products_and_diagonals_are_those_of_the_matrices_that_a_form_stands_for(form: str) -> None:
    root, sign = randn(2, 3, 4, 2), torch.tensor([1.0, -2.0], dtype=DOUBLE)
    curvature = {
        "number": ScalarCurvature(randn(2, 3), 4),
        "matrix": TokenCurvature(root @ root.mT),
        "root": LowRankTokenCurvature(root),
        "factors": FactoredTokenCurvature(root, sign * root),
        "softmax": SoftmaxCurvature(randn(2, 3).abs(), randn(2, 3, 4).softmax(-1)),
        "softmax, near one-hot": SoftmaxCurvature(randn(2, 3).abs(), (40 * randn(2, 3, 4)).softmax(-1)),
    }[form]
    eye = torch.eye(4, dtype=DOUBLE).expand(2, -1, -1)
    C, M = curvature.between(eye, eye), randn(2, 3, 4, 5, seed=1)
    assert_same(curvature.times(M), C @ M, "C M")
    assert_same(curvature.diagonals(randn(2, 3, 4)), torch.diagonal(C, dim1=-2, dim2=-1), "diagonals")


@pytest.mark.parametrize("scale", [1.0, 40.0, 300.0])
def test_probabilities_give_the_matrices_entry_by_entry(scale: float) -> None:
    """Also where a class has all but 1e-30 of the probability: every entry of C_i keeps its digits."""
    weight, p = randn(2, 3).abs(), (scale * randn(2, 3, 4)).softmax(-1)
    curvature = SoftmaxCurvature(weight, p)
    others = 1 - torch.eye(4, dtype=DOUBLE)
    expected = torch.diag_embed(p * (others * p[..., None, :]).sum(-1)) - p[..., None] * p[..., None, :] * others
    expected *= weight[..., None, None]
    assert torch.allclose(curvature.matrices, expected, rtol=1e-12, atol=0)
    eye = torch.eye(4, dtype=DOUBLE)
    assert torch.allclose(curvature.times(eye.expand(2, 3, -1, -1)), expected, rtol=1e-12, atol=1e-320)
    columns = curvature.apply(eye[:, None, None].expand(-1, 2, 3, -1).clone())
    assert torch.allclose(columns.permute(1, 2, 3, 0), expected, rtol=1e-12, atol=1e-320)
    assert_same(as_curvature(curvature, randn(2, 3, 4)).apply(randn(1, 2, 3, 4)), curvature.apply(randn(1, 2, 3, 4)))
