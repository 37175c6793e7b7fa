"""The sweeps measure, fit, draw and explain; at tiny sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks import scaling, scaling_plot, scaling_text
from benchmarks.depth import Stack
from benchmarks.harness import Options
from benchmarks.problem import Size
from benchmarks.sweeps import SWEEPS

TINY = (
    replace(SWEEPS[0], values=(2, 3, 4), base=Size(batch=1, length=0, width=4)),
    # Long enough that no row of attention is saturated: those take more operations, whatever the batch.
    replace(SWEEPS[3], values=(1, 2, 3), base=Size(batch=0, length=8, width=4)),
    replace(SWEEPS[4], values=(1, 2, 3), base=Stack(layers=0, width=8, sequences=2, length=4, vocabulary=5)),
)


@pytest.fixture(scope="module")
def result():
    before = torch.get_num_threads()
    found = scaling.measure(TINY, Options(quick=True, threads=1), lambda step: None)
    torch.set_num_threads(before)
    return found


def test_slope_of_a_power_law():
    assert scaling.slope([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)


def test_every_sweep_has_five_values_and_an_expectation():
    for sweep in SWEEPS:
        assert len(sweep.values) >= 5
        assert set(sweep.expected) == {*scaling.KINDS, scaling.GRADIENT}


@pytest.mark.long
def test_costs_are_relative_to_the_gradient(result):
    for found in result.details["sweeps"].values():
        assert found["costs"][scaling.GRADIENT]["relative"] == [1.0] * 3
        assert set(found["slopes"]) == {*scaling.KINDS, scaling.GRADIENT}


@pytest.mark.long
def test_a_sum_over_tokens_counts_in_proportion_to_the_batch(result):
    operations = result.details["sweeps"][TINY[1].name]["costs"]["trace"]["operations"]
    assert operations[2] / operations[0] == pytest.approx(3, rel=0.1)


@pytest.mark.long
def test_products_count_in_proportion_to_the_layers(result):
    operations = result.details["sweeps"]["layers"]["costs"]["product"]["operations"]
    assert operations[2] - operations[1] == pytest.approx(operations[1] - operations[0], rel=0.01)


@pytest.mark.long
def test_figure_and_text_are_written(result, tmp_path):
    for path in (*scaling_plot.save(result, tmp_path), scaling_text.save(TINY, result, tmp_path)):
        assert path.stat().st_size > 1000
    text = (tmp_path / "scaling.md").read_text()
    assert all(sweep.expected["norms"].why in text for sweep in TINY)
    assert len(scaling_text.notes(TINY, result)) == len(TINY)


def test_expected_range_includes_its_ends():
    expected = scaling.Expectation(1, 2, "")
    assert scaling_text.inside(1, expected)
    assert scaling_text.inside(2.1, expected)
    assert not scaling_text.inside(2.5, expected)
