"""Error bars cover the truth at the stated rate; wrong ones are found out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from hessianlens.spectra import (
    Estimate,
    Probes,
    SpectralDensity,
    density,
    diagonal,
    frobenius,
    heterogeneity,
    inertia,
    median_entry,
    trace,
)
from tests.spectra.coverage import assert_covers, assert_covers_at_least
from tests.spectra.registry import low_rank, symmetric, with_spectrum
from tests.variants import DOUBLE, randn

SEEDS = range(200)
N = 30
SPECTRUM = torch.cat([torch.linspace(-2, -0.5, N // 3), torch.linspace(0.2, 3, N - N // 3)]).to(DOUBLE)
OPERATORS = {
    "flat": symmetric(N),
    "decaying": with_spectrum(torch.linspace(1, 0, N, dtype=DOUBLE) ** 2),
    "shifted": with_spectrum(SPECTRUM),
    "low rank": low_rank(N, 12)[1],
    "unsymmetric": randn(N, N, seed=7),
}


@pytest.mark.parametrize("distribution", ["rademacher", "gaussian", "sphere"])
@pytest.mark.parametrize("kind", [*OPERATORS, "tall", "wide"])
def test_frobenius(kind: str, distribution: str) -> None:
    A = {**OPERATORS, "tall": randn(40, 25, seed=8), "wide": randn(12, 40, seed=9)}[kind]
    estimates = [frobenius(A, 20, seed, distribution=distribution) for seed in SEEDS]
    assert_covers(estimates, float(A.norm()))


@pytest.mark.expensive
@pytest.mark.parametrize("method", ["hutchinson", "hutch++"])
@pytest.mark.parametrize("kind", OPERATORS)
def test_trace(kind: str, method: str) -> None:
    A = OPERATORS[kind]
    assert_covers([trace(A, 24, seed, method) for seed in SEEDS], float(A.trace()))


def test_trace_from_very_few_samples() -> None:
    """Two samples beyond the sketch: one degree of freedom."""
    A = OPERATORS["flat"]
    assert_covers([trace(A, 6, seed, "hutch++") for seed in SEEDS], float(A.trace()))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["flat", "decaying", "unsymmetric"])
def test_trace_by_xtrace_is_on_the_safe_side(kind: str) -> None:
    A = OPERATORS[kind]
    estimates = [trace(A, 14, seed, "xtrace") for seed in SEEDS]
    assert_covers_at_least(estimates, float(A.trace()))
    values, errors = np.array([(e.value, e.stderr) for e in estimates]).T
    assert 1 <= np.sqrt((errors**2).mean()) / values.std() < 3
    assert abs(values.mean() - float(A.trace())) < 4 * values.std() / len(values) ** 0.5


def test_every_entry_of_a_diagonal() -> None:
    A = OPERATORS["flat"]
    estimates = [diagonal(A, 15, seed) for seed in SEEDS]
    for i, truth in enumerate(A.diagonal().tolist()):
        assert_covers([e[i] for e in estimates], truth)


@pytest.mark.parametrize("kind", ["flat", "unsymmetric"])
def test_median_entry(kind: str) -> None:
    A = OPERATORS[kind]
    estimates = [median_entry(A, 12, seed) for seed in SEEDS]
    assert_covers_at_least(estimates, float(np.median(A.abs().numpy())))


SPECTRA = {"flat": symmetric(16), "shifted": with_spectrum(torch.linspace(-0.5, 2.5, 16, dtype=DOUBLE))}


@cache
def spectra(kind: str, seed: int = 0) -> list[SpectralDensity]:
    return [density(SPECTRA[kind], 8, 16, seed + s, method="lanczos") for s in SEEDS]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["flat", "shifted"])
def test_spectral_density(kind: str) -> None:
    truth = torch.linalg.eigvalsh(SPECTRA[kind])
    found = spectra(kind)
    for power in (1, 2, 3):
        assert_covers([s.moment(power) for s in found], float((truth**power).mean()))
    inertias = [inertia(s) for s in found]
    assert_covers([i.negative for i in inertias], float((truth < 0).double().mean()))
    assert_covers_at_least([i.mass for i in inertias], float(truth.clamp(max=0).abs().sum() / truth.abs().sum()))
    at = float(truth.median()) + 1e-3
    share, cdfs = float((truth <= at).double().mean()), [s.cdf(at) for s in found]
    assert 180 <= sum(bool(c.lower <= share <= c.upper) for c in cdfs) <= 199


@pytest.mark.long
@pytest.mark.parametrize("shared_probes", [True, False])
def test_divergence_of_spectra(shared_probes: bool) -> None:
    exact = heterogeneity(SPECTRA)
    other = {"flat": spectra("flat"), "shifted": spectra("shifted", 0 if shared_probes else 1000)}
    found = [heterogeneity({kind: other[kind][i] for kind in other}) for i in SEEDS]
    assert_covers_at_least([f.mean for f in found], exact.mean.value)
    assert_covers_at_least([f["flat", "shifted"] for f in found], exact["flat", "shifted"].value)


@pytest.mark.long
@pytest.mark.parametrize("score", ["norm", "trace"])
def test_ratio_of_sizes(score: str) -> None:
    blocks = {"a": OPERATORS["shifted"], "b": 3 * OPERATORS["shifted"], "c": OPERATORS["decaying"]}
    exact = heterogeneity(blocks, score, probes=N)
    found = [heterogeneity(blocks, score, probes=20, seed=10 * seed) for seed in SEEDS]
    assert_covers([f.mean for f in found], exact.mean.value)
    assert_covers([f["a", "b"] for f in found], 1 / 3)


WRONG = {
    "shifted by one standard error": lambda e: replace(e, value=e.value + e.stderr),
    "error bar too small": lambda e: replace(e, stderr=0.6 * e.stderr),
    "error bar too large": lambda e: replace(e, stderr=2 * e.stderr),
    "normal instead of Student": lambda e: replace(e, dof=10**6),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_error_bars_are_found_out(wrong: str) -> None:
    A = OPERATORS["flat"]
    right = [trace(A, 5, seed) for seed in SEEDS]
    assert_covers(right, float(A.trace()))
    with pytest.raises(AssertionError):
        assert_covers([WRONG[wrong](e) for e in right], float(A.trace()))


def test_a_biased_estimator_is_found_out() -> None:
    """The mean of ``|A v|`` is not the root of the mean of ``|A v|^2``."""
    A = randn(32, 2) @ randn(2, 32, seed=1)

    def biased(seed: int) -> Estimate:
        samples = (A @ Probes(32, 25, seed).matrix(0, 25)).norm(dim=0)
        return Estimate.from_samples(samples, 25, seed, "biased")

    with pytest.raises(AssertionError):
        assert_covers([biased(seed) for seed in SEEDS], float(A.norm()))
