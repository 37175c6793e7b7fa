"""Fitted exponents: exact recovery, honest intervals, and predictions that are wrong must be told so."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from hessianlab.growth.exponents import FitRange, exponent_fits, exponent_table, fit_slope, growth_sentences
from hessianlab.growth.measure import GrowthConfig
from hessianlab.growth.series import GrowthSeries, SeriesKey, growth_series
from hessianlab.results import Result, collect
from hessianlens.errors import InputError
from tests.hessianlab.growth.synthetic import noisy_power, synthetic

KEY = SeriesKey(0, 1, 0, "query", "outer")
EVERYWHERE = FitRange("all", 0.0, 10.0)


def config(**changes: object) -> GrowthConfig:
    return GrowthConfig(points=7, repeats=4, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("exponent", [6.0, 2.0, 54.0, -1.5])
def test_a_power_law_gives_its_exponent(exponent: float) -> None:
    fits = exponent_fits(synthetic(config(), lambda sigma, repeat: (1 + repeat) * sigma**exponent))
    assert {fit.range.name for fit in fits} == {"small", "practical", "large"}
    for fit in fits:
        assert fit.measured == pytest.approx(exponent, abs=1e-9)
        assert fit.high - fit.low < 1e-9
        assert fit.left_out == 0


def test_interval_covers_the_true_exponent_as_often_as_it_says() -> None:
    sigma = np.geomspace(0.01, 1, 6)
    source = np.random.default_rng(0)
    trials, hits = 2000, 0
    for _ in range(trials):
        values = sigma**5 * np.exp(0.2 * source.standard_normal((5, 6)))
        slope = fit_slope(GrowthSeries(KEY, sigma, values, True), EVERYWHERE)
        hits += slope.low <= 5 <= slope.high
    # 0.95 within four standard deviations of a binomial share.
    assert abs(hits / trials - 0.95) < 4 * math.sqrt(0.95 * 0.05 / trials)


def test_a_wrong_prediction_is_flagged() -> None:
    """Norms of power 5 where both theory and paper say 6."""
    small, practical, _ = exponent_fits(synthetic(config(), noisy_power(5.0, 0.05, seed=1)))
    assert (small.predicted, small.agrees, small.paper, small.paper_agrees) == (6, False, 6, False)
    assert (practical.predicted, practical.agrees) == (None, None)
    assert practical.paper_agrees is False


def test_a_right_prediction_agrees() -> None:
    small = exponent_fits(synthetic(config(), noisy_power(6.0, 0.05, seed=1)))[0]
    assert small.agrees is True and small.paper_agrees is True


def test_noise_that_hides_the_exponent_decides_nothing() -> None:
    small = exponent_fits(synthetic(config(), noisy_power(5.0, 8.0, seed=3)))[0]
    assert small.low < 6 < small.high
    assert small.agrees is None


def test_one_repeat_has_no_interval_and_no_verdict() -> None:
    single = GrowthConfig(points=7, repeats=1)
    small = exponent_fits(synthetic(single, lambda sigma, _: sigma**6))[0]
    assert small.measured == pytest.approx(6)
    assert (small.low, small.high, small.agrees) == (None, None, None)


@pytest.mark.parametrize("broken", [0.0, math.nan, math.inf])
def test_values_without_logarithm_are_left_out_and_counted(broken: float) -> None:
    result = synthetic(GrowthConfig(points=12, repeats=4), lambda s, r: broken if s < 0.012 and r == 2 else s**6)
    small = exponent_fits(result)[0]
    assert small.left_out == 1
    assert small.repeats == 4
    assert small.measured == pytest.approx(6, abs=1e-9)


def test_a_block_that_vanishes_agrees_with_zero_only() -> None:
    series = ((0, "value", "functional"), (0, "value", "outer"))
    fits = {fit.series.part: fit for fit in exponent_fits(synthetic(config(), lambda s, r: 0.0, series=series))[::3]}
    assert (fits["functional"].predicted, fits["functional"].agrees) == ("zero", True)
    assert (fits["outer"].predicted, fits["outer"].agrees) == (2, False)
    alive = exponent_fits(synthetic(config(), lambda s, r: s**3, series=series[:1]))[0]
    assert alive.agrees is False


def test_the_interval_is_students() -> None:
    slopes, sigma = [4.8, 5.1, 5.3], np.array([0.01, 0.1, 1.0])
    found = fit_slope(GrowthSeries(KEY, sigma, np.array([sigma**p for p in slopes]), True), EVERYWHERE)
    expected = stats.t.interval(0.95, df=2, loc=np.mean(slopes), scale=stats.sem(slopes))
    assert (found.low, found.high) == pytest.approx(expected)


def test_zeros_with_cells_missing_decide_nothing() -> None:
    result = synthetic(config(), lambda s, r: 0.0, series=((0, "value", "functional"),))
    half = exponent_fits(dataclasses.replace(result, cells=result.cells[: len(result.cells) // 2 + 1]))[0]
    assert (half.predicted, half.agrees) == ("zero", None)
    nearly = synthetic(config(), lambda s, r: s if r == 3 else math.nan, series=((0, "value", "functional"),))
    assert exponent_fits(nearly)[0].agrees is False


def test_ranges_include_their_ends_and_need_three_points() -> None:
    ranged = GrowthConfig(points=4, repeats=2, fit_ranges=(("small", 0.0, 1.0), ("large", 1.0, 10.0)))
    fits = exponent_fits(synthetic(ranged, lambda s, r: s))
    assert [(fit.range.name, fit.points) for fit in fits] == [("small", 3)]


def test_table_has_a_row_a_fit() -> None:
    result = synthetic(config(), lambda s, r: s**6)
    rows = exponent_table([result, result])
    assert len(rows) == 6
    assert rows[0]["experiment"] == "fig3a" and rows[0]["block"] == "query" and rows[0]["predicted"] == 6


def test_series_keep_repeats_apart() -> None:
    series = growth_series(synthetic(config(), lambda sigma, repeat: (1 + repeat) * sigma))[KEY]
    assert series.values.shape == (4, 7)
    np.testing.assert_allclose(series.mean, 2.5 * series.sigma)
    np.testing.assert_allclose(series.stderr, np.std([1, 2, 3, 4], ddof=1) / 2 * series.sigma)
    np.testing.assert_allclose(series.highest, 4 * series.lowest)


def test_other_results_are_refused() -> None:
    with pytest.raises(InputError, match="got no cells of fig3a"):
        growth_series(Result("fig3a", "quick", {}, (), collect()))
    with pytest.raises(InputError, match="expected a growth experiment"):
        cells = synthetic(config(), lambda s, r: s).cells
        growth_series(Result("fig1", "quick", {}, (type(cells[0])({}, cells[0].measurement, 0.0),), collect()))


def test_findings_tell_what_disagrees() -> None:
    wrong = growth_sentences(synthetic(config(), noisy_power(5.0, 0.02, seed=1)))
    assert "0 of 1 exponents agree, 1 differs (query outer for small σ: " in wrong[1]
    assert "0 of 2 exponents agree, 2 differ (query outer for small σ: " in wrong[2]
    right = growth_sentences(synthetic(config(), noisy_power(6.0, 0.02, seed=1)))
    assert right[1:] == [
        "Predicted by counting powers of σ: 1 of 1 exponents agree.",
        "Drawn or stated in the paper: 2 of 2 exponents agree.",
    ]
