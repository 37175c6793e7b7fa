"""A curvature given as two thin factors, or in any other form, is the matrix that it stands for."""

from __future__ import annotations

import pytest
import torch

from hessianlens.losses import LowRankTokenCurvature, ScalarCurvature, TokenCurvature
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


@pytest.mark.parametrize("form", ["number", "matrix", "root", "factors"])
def test_products_and_diagonals_are_those_of_the_matrices_that_a_form_stands_for(form: str) -> None:
    root, sign = randn(2, 3, 4, 2), torch.tensor([1.0, -2.0], dtype=DOUBLE)
    curvature = {
        "number": ScalarCurvature(randn(2, 3), 4),
        "matrix": TokenCurvature(root @ root.mT),
        "root": LowRankTokenCurvature(root),
        "factors": FactoredTokenCurvature(root, sign * root),
    }[form]
    eye = torch.eye(4, dtype=DOUBLE).expand(2, -1, -1)
    C, M = curvature.between(eye, eye), randn(2, 3, 4, 5, seed=1)
    assert_same(curvature.times(M), C @ M, "C M")
    assert_same(curvature.diagonals(randn(2, 3, 4)), torch.diagonal(C, dim1=-2, dim2=-1), "diagonals")
