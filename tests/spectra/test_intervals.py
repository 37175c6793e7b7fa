"""Intervals of norms hold the truth as often as they say: over seeds, kinds of spectra and numbers of probes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, t

from hessianlens.spectra import Estimate, Probes, frobenius
from hessianlens.spectra.estimate import PowerProduct
from hessianlens.spectra.intervals import squared_lengths as ends
from hessianlens.spectra.norms import norm_from_lengths
from tests.spectra.spectra_of_kinds import KINDS, SEEDS, squared_lengths
from tests.variants import DOUBLE, randn

Interval = Callable[[Estimate], tuple[float, float]]
ROUNDING = 1e-12


def estimates(kind: str, distribution: str, probes: int) -> list[Estimate]:
    """The norm of every seed, whose truth is 1."""
    samples = squared_lengths(kind, distribution)[:, :probes]
    values = np.sqrt(samples.mean(1))
    errors = samples.std(1, ddof=1) / math.sqrt(probes) / (2 * values)
    return [Estimate(v, e, probes, skewed=True) for v, e in zip(values.tolist(), errors.tolist(), strict=True)]


def assert_within_two_points(found: list[Estimate], interval: Interval = Estimate.interval) -> None:
    """From 93 %, less a point for the number of seeds, to 98.5 %: between the extremes they are on the safe side."""
    both = np.array([interval(estimate) for estimate in found])
    low, high = float((both[:, 1] < 1 - ROUNDING).mean()), float((both[:, 0] > 1 + ROUNDING).mean())
    said = f"{1 - low - high:.1%} covered, {low:.1%} too low, {high:.1%} too high"
    assert 0.92 <= 1 - low - high <= 0.985, said
    assert max(low, high) <= 0.075, said


@pytest.mark.parametrize("probes", [3, 4, 5, 6, 8, 10, 15, 20, 30, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_random_signs(kind: str, probes: int) -> None:
    assert_within_two_points(estimates(kind, "rademacher", probes))


@pytest.mark.parametrize("probes", [3, 6, 20])
@pytest.mark.parametrize("kind", KINDS)
def test_normal_vectors(kind: str, probes: int) -> None:
    assert_within_two_points(estimates(kind, "gaussian", probes))


def _student(estimate: Estimate) -> tuple[float, float]:
    return replace(estimate, skewed=False).interval()


def _student_of_the_logarithm(estimate: Estimate) -> tuple[float, float]:
    half = t.ppf(0.975, estimate.probes - 1) * estimate.stderr / estimate.value
    return estimate.value * math.exp(-half), estimate.value * math.exp(half)


WRONG: dict[str, tuple[Interval, str, tuple[int, ...]]] = {
    "two standard errors": (lambda e: (e.value - 2 * e.stderr, e.value + 2 * e.stderr), "one", (3, 4, 8, 20)),
    "two standard errors, flat": (lambda e: (e.value - 2 * e.stderr, e.value + 2 * e.stderr), "flat", (3, 4, 6)),
    "Student": (_student, "one over thrice", (3, 4, 8, 20)),
    "Student on a log scale": (_student_of_the_logarithm, "one over as much", (3, 4, 8)),
    "twice as wide": (lambda e: replace(e, stderr=2 * e.stderr).interval(), "flat", (10, 20, 50)),
    "one end": (lambda e: (0.0, e.interval()[1]), "flat", (10, 20)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_intervals_are_found_out(wrong: str) -> None:
    interval, kind, counts = WRONG[wrong]
    for probes in counts:
        with pytest.raises(AssertionError, match="covered"):
            assert_within_two_points(estimates(kind, "rademacher", probes), interval)


@pytest.mark.parametrize("probes", [4, 20])
def test_frobenius_of_a_matrix_of_rank_one(probes: int) -> None:
    """The whole way, from the seed to the interval."""
    u = randn(40)
    A = torch.outer(u, u) / u.square().sum()
    assert_within_two_points([frobenius(A, probes, seed) for seed in range(500)])


def test_a_diagonal_matrix_has_no_error_but_rounding() -> None:
    A = torch.diag(torch.linspace(1, 2, 30, dtype=DOUBLE))
    found = frobenius(A, 5)
    low, high = found.interval()
    assert found.stderr < 1e-12 and low - 1e-12 <= float(A.norm()) <= high + 1e-12


def test_two_probes_and_one() -> None:
    """One probe of a matrix of rank one is a chi-square variable, and its interval exact; others more often so."""
    for kind in KINDS:
        both = np.array([e.interval() for e in estimates(kind, "rademacher", 2)])
        assert ((both[:, 0] <= 1) & (both[:, 1] >= 1)).mean() > 0.9
        squares = torch.from_numpy(squared_lengths(kind, "gaussian")[:500, :1].copy())
        alone = [norm_from_lengths(length, seed=0) for length in squares.sqrt()]
        covered = np.mean([low <= 1 <= high for low, high in (e.interval() for e in alone)])
        assert covered >= 0.93 and (kind != "one" or covered <= 0.97)
    low, high = ends(0.9, 1, math.inf)
    assert (low, high) == pytest.approx((1 / chi2.ppf(0.95, 1), 1 / chi2.ppf(0.05, 1)))


@pytest.mark.long
@pytest.mark.parametrize("level", [0.68, 0.9, 0.99])
def test_other_levels(level: float) -> None:
    """Within a quarter of what is left to 1, or on the safe side."""
    for kind in KINDS:
        for probes in (4, 10, 30):
            both = np.array([e.interval(level) for e in estimates(kind, "rademacher", probes)[: SEEDS // 2]])
            assert ((both[:, 0] <= 1) & (both[:, 1] >= 1)).mean() > level - max((1 - level) / 4, 0.015)


def test_intervals_are_nested_hold_the_value_and_tend_to_students() -> None:
    for samples in (2, 3, 10, 100):
        for relative in (0.0, 1e-3, 0.3, 2.0):
            found = [ends(level, samples, relative) for level in (0.1, 0.5, 0.9, 0.99, 0.9999)]
            assert all(0 < low <= 1 <= high < math.inf for low, high in found)
            lows, highs = zip(*found, strict=True)
            assert list(lows) == sorted(lows, reverse=True) and list(highs) == sorted(highs)
    low, high = ends(0.95, 10**6, 1e-4)
    assert (1 - low) / 1e-4 == pytest.approx(1.96, rel=0.01) and (high - 1) / 1e-4 == pytest.approx(1.96, rel=0.01)


def test_samples_are_pooled() -> None:
    """From 8 and then 12 more: as from 20 at once, and narrower."""
    squares = torch.from_numpy(squared_lengths("three", "rademacher")[5, :20].copy())
    some, all_of_them = norm_from_lengths(squares[:8].sqrt(), seed=0), norm_from_lengths(squares.sqrt(), seed=0)
    assert norm_from_lengths(torch.cat([squares[:8], squares[8:]]).sqrt(), seed=0) == all_of_them
    assert all_of_them.probes == all_of_them.samples == 20 and all_of_them.value == pytest.approx(
        math.sqrt(squares.mean())
    )
    assert all_of_them.relative_width() < some.relative_width()
    assert all_of_them.stderr == pytest.approx(float(squares.std()) / math.sqrt(20) / (2 * all_of_them.value))


def test_zero_and_exact_squares() -> None:
    zero = norm_from_lengths(torch.zeros(4), seed=0)
    assert zero.interval() == (0, 0) and zero.relative_width() == 0 and str(zero) == "0 [0, 0] (4 probes: few)"
    basis = norm_from_lengths(torch.tensor([3.0, 4.0]), seed=None, exact=True)
    assert (basis.value, basis.method, basis.interval(), basis.relative_width()) == (5, "basis", (5, 5), 0)


def test_the_width_is_relative() -> None:
    estimate = Estimate(2.0, 0.1, 20, skewed=True)
    low, high = estimate.interval(0.9)
    assert estimate.relative_width(0.9) == pytest.approx((high - low) / 4)
    assert Estimate(-2.0, 0.1, 20).relative_width() == pytest.approx(t.ppf(0.975, 19) * 0.05)
    assert Estimate(0.0, 0.1, 20).relative_width() == math.inf


@pytest.mark.parametrize("probes", [4, 20])
@pytest.mark.parametrize("kinds", [("one", "one"), ("one over as much", "flat"), ("flat", "one"), ("flat", "flat")])
def test_ratios_of_norms(kinds: tuple[str, str], probes: int) -> None:
    """On the safe side; Student's interval of the first derivatives is not."""
    over, under = (estimates(kind, d, probes) for kind, d in zip(kinds, ("rademacher", "gaussian"), strict=True))
    made = [PowerProduct.of(a.value / b.value, [(a, 1), (b, -1)]) for a, b in zip(over, under, strict=True)]
    covered = np.mean([low <= 1 <= high for low, high in (ratio.interval() for ratio in made)])
    assert 0.92 <= covered <= 0.995
    if kinds == ("one over as much", "flat"):
        assert np.mean([low <= 1 <= high for low, high in (Estimate.interval(ratio) for ratio in made)]) < 0.92


def test_products_of_powers() -> None:
    a, b, exact = Estimate(2.0, 0.1, 12, skewed=True), Estimate(-5.0, 0.4, 8), Estimate.exactly(3.0)
    alone = PowerProduct.of(4.0, [(a, 2), (exact, 1)])
    assert alone.interval() == pytest.approx(tuple(end**2 for end in a.interval()))
    inverse = PowerProduct.of(0.5, [(a, -1)])
    assert inverse.interval() == pytest.approx(tuple(1 / end for end in reversed(a.interval())))
    signed = PowerProduct.of(-0.4, [(a, 1), (b, -1)])
    low, high = signed.interval()
    assert low < -0.4 < high < 0 and signed.probes == 8 and signed.few
    assert PowerProduct.of(9.0, [(exact, 2)]) == Estimate.exactly(9.0)
    around_zero = PowerProduct.of(0.05, [(Estimate(0.1, 0.2, 12), 1), (a, -1)])
    assert around_zero.interval() == Estimate.interval(around_zero)


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (Estimate(3.2141, 0.0372, 20, 0, skewed=True), "3.21 [3.15, 3.33] (20 probes)"),
        (Estimate(3.2141, 0.0372, 9, 0, skewed=True), "3.21 [3.15, 3.38] (9 probes: few)"),
        (Estimate(3.2141, 0.0372, 10, 0), "3.21 [3.13, 3.30] (10 probes)"),
        (Estimate(3.2141, 0.0372, 24, 0, dof=7), "3.21 [3.13, 3.30] (24 probes: few)"),
        (Estimate(-1.0, 0.5, 20, 0), "-1.0 [-2.0, 0.0] (20 probes)"),
        (Estimate(2.5e-7, 1e-8, 20, 0, skewed=True), "(2.50 [2.32, 2.79])e-07 (20 probes)"),
        (Estimate(math.nan, math.nan, 20, 0), "nan [nan, nan] (20 probes)"),
        (Estimate.exactly(3.2141), "3.2141 (exact)"),
    ],
)
def test_printing(estimate: Estimate, shown: str) -> None:
    assert str(estimate) == shown


def test_blocks_of_equal_size_have_independent_probes() -> None:
    size, names = 500, ("layer0.attn.q", "layer0.attn.k")
    one, other = (Probes.of_block(name, size, 40, 0, DOUBLE).matrix(0, 40) for name in names)
    overlaps = (one * other).sum(0) / math.sqrt(size)
    assert float(overlaps.abs().max()) < 5 and float(overlaps.square().mean()) == pytest.approx(1, abs=0.9)
    again = Probes.of_block("layer0.attn.q", size, 3, 0, DOUBLE)
    assert torch.equal(again.matrix(0, 3), one[:, :3])
    assert Probes.of_block("q", 5, 5, 0, DOUBLE) == Probes(5, 5, None, "basis", DOUBLE)
