"""Eigenvalues at the ends of the spectrum, with residuals that are true."""

from __future__ import annotations

import pytest
import torch
from curvlinops.examples import TensorLinearOperator

from hessianlens.spectra import eigenvalues
from tests.spectra.registry import Counting, symmetric, with_spectrum
from tests.variants import DOUBLE

N = 260
SPECTRUM = torch.cat([torch.tensor([-9.0, -4.0]), torch.linspace(-1, 1, N - 5), torch.tensor([3.0, 6.0, 7.0])]).to(
    DOUBLE
)
A = with_spectrum(SPECTRUM)
EXPECTED = {"largest": [7.0, 6.0, 3.0], "smallest": [-9.0, -4.0, -1.0], "magnitude": [-9.0, 7.0, 6.0]}


@pytest.mark.parametrize("which", EXPECTED)
@pytest.mark.parametrize("method", ["arpack", "dense"])
def test_ends_of_a_known_spectrum(which: str, method: str) -> None:
    found = eigenvalues(TensorLinearOperator(A), 3, which, method=method)
    assert found.converged
    assert found.method == method
    assert found.values.tolist() == pytest.approx(EXPECTED[which], rel=1e-9)
    assert float(found.residuals.max()) < 1e-7


def test_both_ends_and_automatic_choice() -> None:
    assert eigenvalues(A, 2, "both").values.tolist() == pytest.approx([-9, -4, 6, 7])
    assert eigenvalues(A).method == "arpack"
    assert eigenvalues(A, N // 2 + 1).method == "dense"
    assert eigenvalues(A[:50, :50]).method == "dense"


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-10])
def test_residuals_are_true_and_bound_the_error(tol: float) -> None:
    found = eigenvalues(A, 4, "both", rtol=tol, vectors=True, method="arpack")
    V, values = found.vectors, found.values
    assert V is not None
    assert torch.allclose(V.norm(dim=0), torch.ones(8, dtype=DOUBLE))
    assert torch.allclose((A @ V - V * values).norm(dim=0), found.residuals, atol=1e-12)
    nearest = (SPECTRUM[:, None] - values).abs().min(0).values
    assert bool((nearest <= found.residuals + 1e-12).all())


def test_what_did_not_converge_is_said() -> None:
    slow = with_spectrum(torch.linspace(0, 1, N, dtype=DOUBLE))
    found = eigenvalues(slow, 5, rtol=0.0, max_iterations=1, method="arpack")
    assert not found.converged
    assert len(found.values) < 5
    assert "NOT all converged" in str(found)


def test_products_are_counted() -> None:
    op = Counting(A)
    found = eigenvalues(op, check_symmetry=False)
    assert found.products == op.vectors
    assert eigenvalues(A, seed=1).values.tolist() == pytest.approx([7])
    assert torch.equal(eigenvalues(A, seed=1).values, eigenvalues(A, seed=1).values)


def test_zero_operator() -> None:
    found = eigenvalues(torch.zeros(N, N, dtype=DOUBLE), 2, vectors=True)
    assert found.values.tolist() == [0, 0]
    assert found.residuals.tolist() == [0, 0]
    assert found.vectors is not None
    assert torch.allclose(found.vectors.T @ found.vectors, torch.eye(2, dtype=DOUBLE))


def test_single_precision() -> None:
    found = eigenvalues(A.float(), 2, "both")
    assert found.converged
    assert found.values.tolist() == pytest.approx([-9, -4, 6, 7], rel=1e-5)


def test_operators_that_are_not_symmetric_are_refused_unless_told() -> None:
    noisy = symmetric(10) + 1e-5 * torch.triu(torch.ones(10, 10, dtype=DOUBLE))
    with pytest.raises(ValueError, match=r"expected a symmetric operator.*check_symmetry=False"):
        eigenvalues(noisy)
    assert eigenvalues(noisy, check_symmetry=False).converged
