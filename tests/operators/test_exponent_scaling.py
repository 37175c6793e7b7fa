"""Norms, traces, diagonals, products and dense forms of very large and very small matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hessianlens as hl
from hessianlens.operators import ArrangedGrid, BlockGrid, Factor, Term, TokenSum
from hessianlens.operators.exponent_scaling import Scaled
from tests.oracles.comparison import assert_same
from tests.variants import randn

SINGLE, DOUBLE = torch.float32, torch.float64
P, G = randn(4, 3), randn(4, 2, 2, seed=1)


def block(p: float | Tensor, g: float | Tensor, coefficient: float = 1.0, dtype: torch.dtype = DOUBLE) -> TokenSum:
    """``coefficient sum_n p_n p_n^T (x) G_n`` with vectors and matrices multiplied by p and g."""
    vectors, matrices = (p * P).to(dtype), (g * G).to(dtype)
    factors = (Factor("p", "na", vectors), Factor("G", "nbd", matrices), Factor("p", "nc", vectors))
    return TokenSum.of([Term(coefficient, factors)], (3, 2), (3, 2))


def grid(one: TokenSum) -> BlockGrid:
    shapes = {"u": (3, 2), "v": (3, 2)}
    return BlockGrid(shapes, shapes, lambda r, c: one, one.dtype, one.device)


RANGES = [
    (SINGLE, 1.0, 1e-30, 1.0),
    (SINGLE, 1.0, 1e30, 1.0),
    (SINGLE, 1e-12, 1e-6, 1.0),
    (SINGLE, 1e20, 1e-37, 1.0),
    (SINGLE, 1e-20, 1e30, 1.0),
    (SINGLE, 1e-10, 1e-15, 1e40),
    (SINGLE, 1.0, 1e-30, 1e45),
    (DOUBLE, 1.0, 1e-200, 1.0),
    (DOUBLE, 1.0, 1e200, 1.0),
    (DOUBLE, 1e-100, 1.0, 1.0),
    (DOUBLE, 1e20, 1e-20, 1.0),
    (DOUBLE, 1e160, 1e-300, 1.0),
    (DOUBLE, 1e-160, 1e300, 1.0),
    (DOUBLE, 1.0, 1.0, 1e-250),
]


@pytest.mark.parametrize("dtype, p, g, coefficient", RANGES)
def test_whatever_the_sizes_of_the_factors(dtype: torch.dtype, p: float, g: float, coefficient: float) -> None:
    op, plain = block(p, g, coefficient, dtype), block(1.0, 1.0)
    size, relative = p * g * p * coefficient, 50 * torch.finfo(dtype).eps
    v = randn(6, seed=2)
    assert float(op.frobenius_norm()) / size == pytest.approx(float(plain.frobenius_norm()), rel=relative)
    assert float(op.trace()) / size == pytest.approx(float(plain.trace()), rel=10 * relative)
    assert_same(op.diagonal().double() / size, plain.diagonal(), "diagonal", relative)
    assert_same(op.to_dense().double() / size, plain.to_dense(), "dense", relative)
    assert_same((op @ v.to(dtype)).double() / size, plain @ v, "product", relative)


@pytest.mark.parametrize("dtype, size", [(SINGLE, 1e-30), (SINGLE, 1e30), (DOUBLE, 1e-200), (DOUBLE, 1e200)])
def test_grids_arrangements_sums_and_distances(dtype: torch.dtype, size: float) -> None:
    op, relative = block(1.0, size, 1.0, dtype), 100 * torch.finfo(dtype).eps
    norm = float(block(1.0, 1.0).frobenius_norm())
    whole = grid(op)
    arranged = ArrangedGrid(whole, (6, 2), (6, 2), lambda t: [t[:3], t[3:]], lambda t: [t[:3], t[3:]])
    unlike = op + TokenSum.of([Term(1.0, (Factor("B", "ac", size * torch.eye(3, dtype=dtype)),
                                           Factor.identity("bd", 2)))], (3, 2), (3, 2))  # fmt: skip
    dense = block(1.0, 1.0).to_dense() + torch.eye(6, dtype=DOUBLE)
    for found, expected in (
        (whole.frobenius_norm(), 2 * norm),
        (arranged.frobenius_norm(), 2 * norm),
        (unlike.frobenius_norm(), float(dense.norm())),
        (op.frobenius_distance(3.0 * op), 2 * norm),
    ):
        assert float(found) / size == pytest.approx(expected, rel=relative)


@pytest.mark.parametrize("dtype, small", [(SINGLE, 1e-12), (DOUBLE, 1e-90)])
def test_a_factor_that_is_small_where_another_is_large(dtype: torch.dtype, small: float) -> None:
    """Tokens of one size, made of factors of opposite sizes: squares of either would vanish."""
    tokens = torch.tensor([1.0, small, 1.0, small], dtype=DOUBLE)
    opposite = torch.tensor([small**2, 1.0, small**2, 1.0], dtype=DOUBLE)
    op = block(tokens[:, None], opposite[:, None, None], dtype=dtype)
    expected = float(block(1.0, 1.0).frobenius_norm()) * small**2
    assert float(op.frobenius_norm()) == pytest.approx(expected, rel=1e-5, abs=0)
    assert float(op.frobenius_inner(1e6 * op)) == pytest.approx(1e6 * expected**2, rel=1e-5, abs=0) or dtype == SINGLE


def test_a_factor_that_is_large_where_another_is_zero() -> None:
    tokens, zero = torch.tensor([1e30, 1e-5, 1e-5, 1e-5]), torch.tensor([0.0, 1.0, 1.0, 1.0])
    op = block(tokens[:, None], zero[:, None, None], dtype=SINGLE)
    expected = block(1e-5, zero[:, None, None]).frobenius_norm()
    assert float(op.frobenius_norm()) == pytest.approx(float(expected), rel=1e-5, abs=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_factors(dtype: torch.dtype) -> None:
    """The sums of a norm leave the range of float16 long before the norm does."""
    vectors, matrices = (20 * P).to(dtype), (10 * G).to(dtype)
    factors = (Factor("p", "na", vectors), Factor("G", "nbd", matrices), Factor("p", "nc", vectors))
    found = TokenSum.of([Term(1.0, factors)], (3, 2), (3, 2)).frobenius_norm()
    wide = torch.einsum("na,nbd,nc->abcd", vectors.double(), matrices.double(), vectors.double())
    assert float(found) == pytest.approx(float(wide.norm()), rel=1e-2)


@pytest.mark.parametrize("dtype, g", [(SINGLE, 3e38), (DOUBLE, 1.7e308)])
def test_a_norm_that_does_not_fit_is_refused_with_its_size(dtype: torch.dtype, g: float) -> None:
    ones = torch.ones(50, 1, dtype=dtype)
    factors = (Factor("p", "na", ones), Factor("G", "nbd", torch.full((50, 2, 2), g, dtype=dtype)))
    op = TokenSum.of([Term(1.0, (*factors, Factor("p", "nc", ones)))], (1, 2), (1, 2))
    with pytest.raises(hl.InputError, match=r"frobenius_norm: it is about 10\^(40|310)\.\d, expected at most"):
        op.frobenius_norm()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so(bad: float) -> None:
    tokens = torch.tensor([1.0, bad, 1.0, 1.0], dtype=DOUBLE)
    op = block(tokens[:, None], 1.0)
    assert not bool(torch.isfinite(op.frobenius_norm()))
    assert not bool(torch.isfinite(op.trace()))


def test_the_norm_can_be_differentiated() -> None:
    vectors = P.clone().requires_grad_()
    factors = (Factor("p", "na", vectors), Factor("G", "nbd", G), Factor("p", "nc", vectors))
    norm = TokenSum.of([Term(1.0, factors)], (3, 2), (3, 2)).frobenius_norm()
    (found,) = torch.autograd.grad(norm, vectors)
    dense = torch.einsum("na,nbd,nc->abcd", vectors, G, vectors).norm()
    (expected,) = torch.autograd.grad(dense, vectors)
    assert_same(found, expected, "gradient of the norm")


@pytest.mark.parametrize("exponent", [-1, 0, 1, 2, 2001, -2001])
def test_the_root_of_odd_and_even_powers_of_two(exponent: int) -> None:
    root = Scaled(torch.tensor(9.0, dtype=DOUBLE), exponent).root()
    assert float(root.mantissa) ** 2 * 2.0 ** (2 * root.exponent - exponent) == pytest.approx(9.0)
