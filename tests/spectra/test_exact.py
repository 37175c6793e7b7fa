"""At full order every estimator is exact, for every operator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hessianlens.operators import StructuredOperator, TokenSum
from hessianlens.spectra import density, diagonal, eigenvalues, frobenius, inertia, median_entry, trace
from hessianlens.spectra.lanczos_quadrature import gauss_quadrature, lanczos
from tests.spectra.registry import ANY, SQUARE, SYMMETRIC, rtol, structured
from tests.variants import DOUBLE


def close(found: Tensor | float, truth: Tensor | float, dense: Tensor) -> bool:
    """Equal up to rounding, relative to the size of the matrix."""
    difference = torch.as_tensor(found, dtype=DOUBLE) - torch.as_tensor(truth, dtype=DOUBLE)
    return float(difference.abs().max()) <= rtol(dense) * float(dense.double().norm())


@pytest.mark.parametrize("kind", ANY)
def test_frobenius(kind: str) -> None:
    op, dense = ANY[kind]()
    found = frobenius(op, probes=dense.shape[1])
    assert found.exact
    assert found.stderr == 0
    assert found.interval() == (found.value, found.value)
    assert close(found.value, dense.double().norm(), dense)


@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace"])
@pytest.mark.parametrize("kind", SQUARE)
def test_trace(kind: str, method: str) -> None:
    op, dense = SQUARE[kind]()
    found = trace(op, probes=dense.shape[0], method=method)
    assert found.exact
    assert close(found.value, dense.trace(), dense)


@pytest.mark.parametrize("kind", SQUARE)
def test_diagonal(kind: str) -> None:
    op, dense = SQUARE[kind]()
    found = diagonal(op, probes=dense.shape[0])
    assert found.exact
    assert not found.stderr.any()
    assert close(found.value, dense.diagonal(), dense)


@pytest.mark.parametrize("kind", ANY)
def test_median_entry(kind: str) -> None:
    op, dense = ANY[kind]()
    found = median_entry(op, columns=dense.shape[1])
    assert found.exact
    assert close(found.value, float(np.median(dense.double().abs().numpy())), dense)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_eigenvalues(kind: str) -> None:
    op, dense = SYMMETRIC[kind]()
    truth = torch.linalg.eigvalsh(dense.double())
    n = len(truth)
    assert close(eigenvalues(op, n, "smallest").values, truth, dense)
    assert close(eigenvalues(op, n, "largest").values, truth.flip(0), dense)
    if n > 1:
        assert close(eigenvalues(op, 1, "both").values, truth[[0, -1]], dense)
    assert close(eigenvalues(op, 1, "magnitude").values.abs(), truth.abs().max(), dense)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_density(kind: str) -> None:
    op, dense = SYMMETRIC[kind]()
    found = density(op, probes=2, steps=dense.shape[0])
    assert found.exact
    assert close(found.nodes[0], torch.linalg.eigvalsh(dense.double()), dense)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_lanczos_from_every_basis_vector_gives_the_whole_spectrum(kind: str) -> None:
    """n probes of n steps: the mean of the quadratures has weight 1/n on every eigenvalue."""
    op, dense = SYMMETRIC[kind]()
    n = dense.shape[0]
    nodes, weights, _ = gauss_quadrature(*lanczos(lambda V: op @ V, torch.eye(n, dtype=dense.dtype), n))
    truth = torch.linalg.eigvalsh(dense.double())
    scale = float(truth.abs().max()) or 1.0
    for power in range(2 * n):
        moment = (weights * (nodes / scale) ** power).sum(1).mean()
        assert abs(float(moment - ((truth / scale) ** power).mean())) < 10 * rtol(dense)


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_inertia(kind: str) -> None:
    op, dense = SYMMETRIC[kind]()
    truth = torch.linalg.eigvalsh(dense.double())
    small = 1e-9 if dense.dtype == DOUBLE else 1e-4
    truth = torch.where(truth.abs() > small * truth.abs().max(), truth, 0)
    found = inertia(op, probes=2, steps=len(truth))
    assert found.negative.value == pytest.approx(float((truth < 0).double().mean()))
    assert found.zero.value == pytest.approx(float((truth == 0).double().mean()))
    assert found.positive.value == pytest.approx(float((truth > 0).double().mean()))
    mass = float(truth.clamp(max=0).abs().sum() / truth.abs().sum()) if truth.any() else 0.0
    assert found.mass.value == pytest.approx(mass, abs=10 * rtol(dense))
    assert found.bounds == pytest.approx((found.negative.value, found.negative.value), abs=1e-12)


@pytest.mark.parametrize("measure", [frobenius, trace, diagonal])
def test_structured_operators_answer_without_products(measure, monkeypatch: pytest.MonkeyPatch) -> None:
    op, _ = structured("full", "Q", "Q")()
    assert isinstance(op, StructuredOperator)
    monkeypatch.setattr(TokenSum, "_matmat", lambda *_: pytest.fail("a product was made"))
    found = measure(op, probes=2)
    assert (found.method, found.probes, found.seed) == ("exact", 0, None)


@pytest.mark.parametrize("method", ["hutch++", "xtrace"])
def test_sketches_are_exact_for_low_rank(method: str) -> None:
    op, dense = SYMMETRIC["low rank"]()
    found = trace(op, probes=11, method=method)
    if method == "hutch++":  # its sketch of 3 of 11 does not reach rank 4
        assert found.stderr > 0
    else:
        assert found.value == pytest.approx(float(dense.trace()), rel=1e-10)
        assert found.stderr < 1e-10
