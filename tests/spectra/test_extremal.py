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
@pytest.mark.parametrize("method", ["lanczos", "arpack", "dense"])
def test_ends_of_a_known_spectrum(which: str, method: str) -> None:
    found = eigenvalues(TensorLinearOperator(A), 3, which, method=method)
    assert found.converged
    assert found.method == method
    assert found.values.tolist() == pytest.approx(EXPECTED[which], rel=1e-9)
    assert float(found.residuals.max()) < 1e-7


def test_both_ends_and_automatic_choice() -> None:
    assert eigenvalues(A, 2, "both").values.tolist() == pytest.approx([-9, -4, 6, 7])
    assert eigenvalues(A).method == "lanczos"
    assert eigenvalues(A, N // 2 + 1).method == "dense"
    assert eigenvalues(A[:50, :50]).method == "dense"


@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-10])
@pytest.mark.parametrize("method", ["lanczos", "arpack"])
def test_residuals_are_true_and_bound_the_error(tol: float, method: str) -> None:
    found = eigenvalues(A, 4, "both", rtol=tol, vectors=True, method=method)
    V, values = found.vectors, found.values
    assert V is not None
    assert torch.allclose(V.norm(dim=0), torch.ones(8, dtype=DOUBLE))
    assert torch.allclose((A @ V - V * values).norm(dim=0), found.residuals, atol=1e-12)
    nearest = (SPECTRUM[:, None] - values).abs().min(0).values
    assert bool((nearest <= found.residuals + 1e-12).all())


@pytest.mark.parametrize("method", ["lanczos", "arpack"])
def test_what_did_not_converge_is_said(method: str) -> None:
    slow = with_spectrum(torch.linspace(0, 1, N, dtype=DOUBLE))
    found = eigenvalues(slow, 5, rtol=0.0, max_iterations=1, method=method)
    assert not found.converged
    assert len(found.values) < 5
    assert "NOT all converged" in str(found)


def test_products_are_counted() -> None:
    op = Counting(A)
    found = eigenvalues(op, check_symmetry=False)
    assert found.products == op.vectors
    assert eigenvalues(A, seed=1).values.tolist() == pytest.approx([7])
    assert torch.equal(eigenvalues(A, seed=1).values, eigenvalues(A, seed=1).values)


@pytest.mark.parametrize("which", ["largest", "smallest", "both", "magnitude"])
@pytest.mark.parametrize("tol", [1e-1, 1e-3, 1e-6])
def test_no_more_products_than_eigsh_at_the_same_tolerance(which: str, tol: float) -> None:
    """A spectrum with outliers and one without; eigsh's residuals, which are no part of it, are not counted."""
    for matrix in (A, with_spectrum(torch.linspace(-1, 2, N, dtype=DOUBLE))):
        ours, theirs = (eigenvalues(matrix, 1, which, rtol=tol, method=method) for method in ("lanczos", "arpack"))
        assert ours.converged
        assert ours.products <= theirs.products - len(theirs.values)
        assert ours.values.tolist() == pytest.approx(theirs.values.tolist(), rel=2 * tol, abs=2 * tol)


def test_restarts_lose_nothing() -> None:
    """A dense end of a spectrum takes many restarts; the residuals stay those of the vectors."""
    slow = with_spectrum(1 + torch.linspace(0, 1, N, dtype=DOUBLE))
    found = eigenvalues(slow, 3, "smallest", rtol=1e-8, vectors=True, method="lanczos")
    V = found.vectors
    assert V is not None and found.converged and found.products > 100
    assert found.values.tolist() == pytest.approx([1 + k / (N - 1) for k in range(3)], rel=1e-12)
    assert torch.allclose((slow @ V - V * found.values).norm(dim=0), found.residuals, atol=1e-12)


def test_invariant_spaces_are_left() -> None:
    """Two eigenvalues and three asked for: a random vector sees two dimensions."""
    matrix = torch.diag(torch.tensor([2.0] * 5 + [1.0] * (N - 5), dtype=DOUBLE))
    found = eigenvalues(matrix, 3, method="lanczos")
    assert found.converged
    assert found.values.tolist() == pytest.approx([2, 2, 2])


def test_rounding_of_single_precision_is_no_lack_of_convergence() -> None:
    found = eigenvalues(A.float(), 2, rtol=1e-12, method="lanczos")
    assert found.converged and float(found.residuals.max()) < 1e-4


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
    large = A + 1e-3 * torch.triu(torch.ones(N, N, dtype=DOUBLE))
    op = Counting(large)
    with pytest.raises(ValueError, match=r"expected a symmetric operator.*check_symmetry=False"):
        eigenvalues(op, rtol=1e-2)
    assert op.vectors < 20  # the Lanczos vectors tell
