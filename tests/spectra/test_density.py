"""Spectral densities: quadrature, smoothing, cumulative distribution, known spectra."""

from __future__ import annotations

import math

import pytest
import torch

from hessianlens.spectra import density, inertia
from hessianlens.spectra.lanczos_quadrature import gauss_quadrature, lanczos
from hessianlens.spectra.probes import Probes
from tests.spectra.registry import SYMMETRIC, symmetric, with_spectrum
from tests.variants import DOUBLE, randn


@pytest.mark.parametrize("kind", SYMMETRIC)
def test_weights_sum_to_one_and_the_curve_integrates_to_one(kind: str) -> None:
    op, _ = SYMMETRIC[kind]()
    for spectrum in (density(op), density(op, 3, 5, method="lanczos")):
        assert torch.allclose(spectrum.weights.sum(1), torch.ones(len(spectrum.weights), dtype=DOUBLE))
        curve = spectrum.on_grid(4000)
        assert float(torch.trapezoid(curve.value, curve.grid)) == pytest.approx(1, abs=1e-3)
        assert spectrum.moment(0).value == pytest.approx(1)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_quadrature_is_exact_for_polynomials_below_twice_the_steps(steps: int) -> None:
    A, v = symmetric(20) / 5, randn(20, 3)
    nodes, weights, _ = gauss_quadrature(*lanczos(lambda V: A @ V, v, steps))
    q = v / v.norm(dim=0)
    power = q
    for degree in range(2 * steps):
        assert torch.allclose((weights * nodes**degree).sum(1), (q * power).sum(0), atol=1e-12)
        power = A @ power
    assert not torch.allclose((weights * nodes ** (2 * steps)).sum(1), (q * power).sum(0), atol=1e-6)


def test_lanczos_vectors_stay_orthogonal() -> None:
    """A dominant eigenvalue, found early, is not found again: without reorthogonalisation it would be, here."""
    spectrum = torch.cat([torch.linspace(0, 1, 99), torch.tensor([1e4])]).to(DOUBLE)
    A = with_spectrum(spectrum)
    nodes, _, _ = gauss_quadrature(*lanczos(lambda V: A @ V, randn(100, 1), 60))
    assert int((nodes > 1e3).sum()) == 1


def test_invariant_subspaces_end_the_recursion() -> None:
    A = with_spectrum(torch.tensor([1.0] * 6 + [2.0] * 6 + [5.0] * 3, dtype=DOUBLE))
    spectrum = density(A, 4, 15, method="lanczos")
    heavy = spectrum.nodes[spectrum.weights > 1e-10]
    assert len(heavy) == 12
    assert torch.allclose(heavy.reshape(4, 3), torch.tensor([1.0, 2.0, 5.0], dtype=DOUBLE))


def test_semicircle() -> None:
    """Wigner: the eigenvalues of a large symmetric Gaussian matrix fill a semicircle."""
    n = 500
    spectrum = density(symmetric(n) * math.sqrt(2 / n), 12, 60)
    assert spectrum.method == "dense"
    sampled = density(symmetric(n) * math.sqrt(2 / n), 12, 60, method="lanczos")
    x = torch.linspace(-1.9, 1.9, 39, dtype=DOUBLE)
    truth = 0.5 + x * (4 - x**2).sqrt() / (4 * math.pi) + torch.arcsin(x / 2) / math.pi
    for found, slack in ((spectrum, 0.005), (sampled, 0.02)):
        assert float((found.cdf(x).value - truth).abs().max()) < slack
        curve = found.on_grid(100, sigma=0.15, bounds=(-1.5, 1.5))
        assert float((curve.value - (4 - curve.grid**2).sqrt() / (2 * math.pi)).abs().max()) < 0.03
    assert float(sampled.cdf(x).stderr.max()) < 0.02


def test_bounds_of_the_cumulative_distribution_hold_for_few_steps() -> None:
    """Chebyshev, Markov and Stieltjes: for the very probes that were used."""
    A = symmetric(30)
    eigenvalues, vectors = torch.linalg.eigh(A)
    shares = (vectors.T @ Probes(30, 5, 0).matrix(0, 5)).square().mean(1) / 30
    for steps in (3, 6, 12, 30):
        spectrum = density(A, 5, steps, method="lanczos")
        x = torch.linspace(-8, 8, 101, dtype=DOUBLE)
        truth = ((eigenvalues <= x[:, None]) * shares).sum(1)
        cdf = spectrum.cdf(x)
        assert bool((cdf.lower <= truth + 1e-12).all())
        assert bool((truth <= cdf.upper + 1e-12).all())
        assert bool((cdf.lower <= cdf.value).all() and (cdf.value <= cdf.upper).all())


def test_threshold_of_zero() -> None:
    A = with_spectrum(torch.tensor([-1.0, -1e-3, 0.0, 0.0, 1e-3, 3.0], dtype=DOUBLE))
    found = inertia(A)
    assert (found.negative.value, found.zero.value) == pytest.approx((1 / 3, 1 / 3))
    assert inertia(A, threshold=0.01).negative.value == pytest.approx(1 / 6)
    assert inertia(A, threshold=0.01).mass.value == pytest.approx(0.25)
    assert inertia(density(A)).mass.value == pytest.approx(found.mass.value)
    assert found.threshold == pytest.approx(10 * 6**0.5 * 2.2e-16 * 3, rel=0.01)


def test_choice_of_method() -> None:
    assert density(symmetric(20), 2, 10).method == "dense"
    assert density(symmetric(21), 2, 10).method == "lanczos"
    assert density(symmetric(21), 2, 10).seed == 0
    assert density(symmetric(21), 2, 10, method="dense").exact
    assert density(symmetric(5), 2, 10, method="lanczos").steps == 5


def test_cumulative_distribution_counts_an_eigenvalue_at_x() -> None:
    spectrum = density(torch.diag(torch.tensor([1.0, 2.0, 2.0, 4.0], dtype=DOUBLE)))
    assert spectrum.cdf(torch.tensor([0.0, 1.0, 2.0, 3.9, 4.0], dtype=DOUBLE)).value.tolist() == [
        0,
        0.25,
        0.75,
        0.75,
        1,
    ]


def test_mass_of_a_spectrum_without_positive_part_is_certain() -> None:
    """Numerator and denominator vary with the probes; their ratio does not."""
    found = inertia(with_spectrum(torch.linspace(-3, -1, 20, dtype=DOUBLE)), 4, 10, method="lanczos")
    assert not found.mass.exact
    assert found.mass.value == pytest.approx(1)
    assert found.mass.stderr < 1e-12
