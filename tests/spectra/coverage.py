"""Do error bars cover the truth as often as they say?"""

from __future__ import annotations

from collections.abc import Sequence

from scipy.stats import binom

from hessianlens.spectra import Estimate

RISK = 1e-4
"""Probability with which a right error bar may fail, on either side; the seeds are fixed, so that it does not."""


def assert_covers(estimates: Sequence[Estimate], truth: float, levels: Sequence[float] = (0.68, 0.95)) -> None:
    """The number of intervals that hold the truth is neither too small nor too large for its binomial law."""
    assert_covers_at_least(estimates, truth, levels)
    for level in levels:
        most = binom.ppf(1 - RISK, len(estimates), level)
        assert (hits := _hits(estimates, truth, level)) <= most, f"{hits} > {most} of {len(estimates)} at {level}"


def assert_covers_at_least(estimates: Sequence[Estimate], truth: float, levels: Sequence[float] = (0.68, 0.95)) -> None:
    """Error bars may be on the safe side."""
    assert len(estimates) >= 200
    for level in levels:
        least = binom.ppf(RISK, len(estimates), level)
        assert (hits := _hits(estimates, truth, level)) >= least, f"{hits} < {least} of {len(estimates)} at {level}"


def _hits(estimates: Sequence[Estimate], truth: float, level: float) -> int:
    rounding = 1e-10 * abs(truth)
    return sum(low - rounding <= truth <= high + rounding for low, high in (e.interval(level) for e in estimates))
