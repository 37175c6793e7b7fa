"""Every property of every operator; and an operator that is wrong must fail them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hessianlens.operators import Factor, TokenSum, term
from hessianlens.operators.exponent_scaling import Scaled
from tests.operators.registry import OPERATORS, kronecker_sum
from tests.oracles.properties import PROPERTIES


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("kind", OPERATORS)
def test_property(kind: str, prop) -> None:
    prop(*OPERATORS[kind]())


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda p: p.__name__)
@pytest.mark.parametrize("kind", ["wide block QQ", "wide block VQ", "wide block QK"])
def test_property_when_the_workspace_is_tiny(kind: str, prop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slicing changes nothing."""
    monkeypatch.setattr(term, "WORKSPACE_BYTES", 1024)
    prop(*OPERATORS[kind]())


class WrongProduct(TokenSum):
    """Multiplies with the first axis of G reversed; everything else is inherited."""

    def _sum(self, output: str, shape: tuple[int, ...], *others: Factor, letters=None) -> Tensor:
        result = super()._sum(output, shape, *others, letters=letters)
        return result.flip(1) if result.ndim == 3 else result

    def _with(self, terms, product) -> TokenSum:
        return WrongProduct(terms(), self._out_shape[0], self._in_shape[0], self.dtype, self.device)


class WrongNorm(TokenSum):
    """Forgets the factor 2 of mixed terms and loses the last token."""

    def _frobenius_square(self) -> Scaled:
        kept = [term.sliced("n", 0, 5) for term in self.terms]
        return TokenSum(kept, self._out_shape[0], self._in_shape[0], self.dtype, self.device)._frobenius_square()


class WrongDiagonal(TokenSum):
    """Returns the diagonal in column-major order."""

    def _diagonal(self) -> Tensor:
        return super()._diagonal().reshape(self._out_shape[0]).T.reshape(-1)


class WrongDense(TokenSum):
    """Writes the transpose."""

    def _dense_into(self, target: Tensor) -> None:
        super()._dense_into(target)
        target.copy_(target.T.clone())


@pytest.mark.parametrize(
    ("wrong", "caught_by"),
    [
        (WrongProduct, {"product_with_vector", "product_with_matrix", "product_with_tensor_list", "scipy_export"}),
        (WrongNorm, {"frobenius_norm"}),
        (WrongDiagonal, {"trace_and_diagonal"}),
        (WrongDense, {"dense_form"}),
    ],
)
def test_wrong_operators_fail(wrong: type[TokenSum], caught_by: set[str]) -> None:
    right, dense = kronecker_sum()
    assert isinstance(right, TokenSum)
    op = wrong(right.terms, (3, 2), (3, 2), torch.float64, torch.device("cpu"))
    failed = set()
    for prop in PROPERTIES:
        try:
            prop(op, dense)
        except AssertionError:
            failed.add(prop.__name__)
    assert caught_by <= failed
