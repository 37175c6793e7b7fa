"""Intervals from Lanczos quadrature hold its bias: they cover the truth with few steps, and with many probes too."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

import hessianlens as hl
from hessianlens.spectra import Probes, density, heterogeneity, inertia
from hessianlens.spectra.canonical import share_bounds, shortfall_bounds
from tests.pairwise import pairwise
from tests.spectra.coverage import RISK
from tests.spectra.toy_blocks import BLOCKS, toy_block

PROBES = (3, 10, 30)
SEEDS = 60
"""Of the larger network; 200 were run when the intervals were made."""
LEAST = 0.93
"""Share of the seeds whose 95 % intervals of a share hold it, at least."""


def shares(eigenvalues: Tensor, threshold: float) -> dict[str, float]:
    size = torch.where(eigenvalues.abs() > threshold, eigenvalues.abs(), 0)
    counts = (eigenvalues < -threshold, eigenvalues.abs() <= threshold, eigenvalues > threshold)
    negative, zero, positive = (float(count.double().mean()) for count in counts)
    mass = float(size[eigenvalues < 0].sum() / size.sum())
    return {"negative": negative, "zero": zero, "positive": positive, "mass": mass}


def holds(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] - 1e-9 <= truth <= interval[1] + 1e-9


def assert_shares_hold(A: Tensor, probes: int, steps: int, seeds: Sequence[int], relative: float) -> None:
    eigenvalues = torch.linalg.eigvalsh(A)
    threshold = relative * float(eigenvalues.abs().max())
    truth = shares(eigenvalues, threshold)
    found = [inertia(A, probes, steps, seed, threshold=threshold, method="lanczos") for seed in seeds]
    for name, share in truth.items():
        hits = sum(holds(getattr(each, name).interval(), share) for each in found)
        least = binom.ppf(RISK, len(seeds), 0.95) if name == "mass" else LEAST * len(seeds)
        assert hits >= least, f"{name} {share:.3f}: {hits} of {len(seeds)} with {probes} probes of {steps} steps"


@pytest.mark.long
@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("block", BLOCKS)
def test_shares_of_eigenvalues_with_few_steps(block: str, probes: int) -> None:
    assert_shares_hold(toy_block(block), probes, 8, range(40), 1e-12)


@pytest.mark.long
@pairwise(block=["layer1.mlp.in", "layer0.attn.q"], probes=PROBES, steps=[8, 32], relative=[1e-12, 1e-3])
def test_shares_of_eigenvalues_of_a_larger_network(block: str, probes: int, steps: int, relative: float) -> None:
    assert_shares_hold(toy_block(block, 12), probes, steps, range(SEEDS), relative)


@pytest.mark.expensive
@pytest.mark.parametrize("relative", [1e-12, 1e-4, 1e-2])
@pytest.mark.parametrize("steps", [1, 2, 5, 12, 30])
@pytest.mark.parametrize("block", BLOCKS)
def test_bounds_hold_for_every_probe(block: str, steps: int, relative: float) -> None:
    """Not on average: the distribution that a probe sees is one of those with the moments that Lanczos knows."""
    A = toy_block(block)
    eigenvalues, vectors = torch.linalg.eigh(A)
    seen = (vectors.T @ Probes(len(A), 20, 5).matrix(0, 20)).square().T / len(A)
    spectrum = density(A, 20, steps, 5, method="lanczos")
    rule = spectrum.nodes, spectrum.weights, spectrum.residuals
    size = float(eigenvalues.abs().max())
    at = torch.tensor([-relative, relative, -0.3, 0.2, 1.5], dtype=torch.float64) * size
    below, up_to = share_bounds(*rule, at)
    truth = torch.stack([(seen * (eigenvalues <= x)).sum(1) for x in at], 1)
    assert bool((below <= truth + 1e-9).all()) and bool((truth <= up_to + 1e-9).all())
    for x in at.tolist():
        least, most = shortfall_bounds(*rule, x)
        mean = (seen * (x - eigenvalues).clamp_min(0)).sum(1)
        assert bool((least <= mean + 1e-9 * size).all()) and bool((mean <= most + 1e-9 * size).all())


def test_bounds_close_as_steps_are_added() -> None:
    A = toy_block("embed")
    widths = [inertia(A, 10, steps, method="lanczos", relative=1e-3).negative.width for steps in (4, 16, 48, len(A))]
    assert widths == sorted(widths, reverse=True) and widths[0] > 0.4 > 0.15 > widths[-1] > 0


@pytest.mark.long
@pytest.mark.parametrize("probes", PROBES)
def test_divergences_of_spectra_with_few_steps(probes: int) -> None:
    """At a width that the steps resolve, and at one that they do not."""
    names = ("embed", "layer0.attn.v", "layer1.attn.q")
    exact = {name: density(toy_block(name), method="dense") for name in names}
    ends = [end for spectrum in exact.values() for end in spectrum.support]
    width = max(ends) - min(ends)
    for sigma in (width / 5, width / 200):
        truth = heterogeneity(exact, sigma=sigma)
        found = []
        for seed in range(40):
            spectra = {name: density(toy_block(name), probes, 8, seed, method="lanczos") for name in names}
            found.append(heterogeneity(spectra, sigma=sigma))
        for pair in ((a, b) for i, a in enumerate(names) for b in names[:i]):
            hits = sum(holds(each[pair].interval(), truth[pair].value) for each in found)
            assert hits >= binom.ppf(RISK, 40, 0.95), f"{pair} at {sigma:.3g}: {hits} of 40"


def test_the_default_width_is_one_that_the_steps_resolve() -> None:
    A = toy_block("embed")
    for steps in (8, 24):
        spectra = {name: density(toy_block(name), 4, steps, method="lanczos") for name in ("embed", "layer0.attn.v")}
        found = heterogeneity(spectra)
        assert found.sigma == pytest.approx(max(s.resolved_sigma() for s in spectra.values()))
        assert all(s.smoothing_error(found.sigma) < 1e-4 for s in spectra.values())
    exact = density(A, method="dense")
    assert exact.smoothing_error(1e-9) == exact.resolved_sigma() == 0


@pytest.mark.parametrize("block", ["embed", "layer0.attn.v"])
@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("sigma", [None, 1 / 200])
def test_smoothed_density_with_few_steps(block: str, probes: int, sigma: float | None) -> None:
    """Values have few large eigenvalues: of their size a handful of probes says little, and less of its spread."""
    A = toy_block(block)
    exact = density(A, method="dense")
    low, high = exact.support
    width = None if sigma is None else sigma * (high - low)
    hits = points = 0
    for seed in range(40):
        curve = density(A, probes, 8, seed, method="lanczos").on_grid(40, width, (low, high))
        truth = exact.on_grid(40, curve.sigma, (low, high)).value
        hits += int(((curve.low - 1e-9 <= truth) & (truth <= curve.high + 1e-9)).sum())
        points += 40
    assert hits >= LEAST * points, f"{hits} of {points}"


def test_small_matrices_are_counted() -> None:
    """A matrix that is there is counted whatever the probes; an operator where that is at most twice the products."""
    A = toy_block("embed")
    eigenvalues, found = torch.linalg.eigvalsh(A), inertia(A, 2, 4)
    assert found.exact and found.zero.value == 0.25  # three of the twelve tokens do not occur
    assert found.negative.value == float((eigenvalues < -found.threshold).double().mean())
    op = hl.hessian(hl.problem(torch.nn.Linear(4, 10), [(torch.randn(6, 4), torch.randn(6, 10))], "square"), "weight")
    assert inertia(op, 2, 10).exact


def test_what_is_not_known_is_not_printed() -> None:
    A = toy_block("layer0.mlp.in")
    rough = inertia(A, 4, 4, method="lanczos")
    assert rough.wide and rough._picture(asked=False) is None and "relative=1e-3" in str(rough)
    assert f"{rough.negative.value:.3g}" not in str(rough.negative) and "between" in str(rough.negative)
    fine = inertia(A)
    assert not fine.wide and fine._picture(asked=False) is not None


def test_moments_beyond_the_quadrature_are_refused() -> None:
    spectrum = density(toy_block("embed"), 3, 4, method="lanczos")
    assert math.isfinite(spectrum.moment(7).value)
    with pytest.raises(hl.InputError, match=r"power: got 8; expected a power below 8 after 4 steps of Lanczos"):
        spectrum.moment(8)


def test_both_thresholds_at_once_are_refused() -> None:
    with pytest.raises(hl.InputError, match=r"relative: got 0.1 beside threshold=0.2; expected one of the two"):
        inertia(toy_block("embed"), threshold=0.2, relative=0.1)
