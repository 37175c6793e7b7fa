"""Paired differences: pairing, intervals that cover, and the power that is told."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from hessianlab.results import Chart, FinishedCell, Measurement, Result, collect
from hessianlab.studies.presentation.findings import caveats, compared, level_sentences, study_findings
from hessianlab.studies.presentation.paired import by_seed, difference, diverged, first_reached, interval, slowdown
from hessianlab.studies.training_study import Arm, Condition, Contrast, minus, study, under
from tests.hessianlab.studies.tiny import TINY

STUDY = study("study_test", "t", "q?", "h", [Arm("a"), Arm("b")], [minus("a", "b")], TINY, TINY)
FINDINGS = study_findings(STUDY)


def made(losses: dict[str, list[float | None]], edge: bool = False) -> Result:
    """A result with these final losses; half of the way a loss is one higher."""
    cells = []
    for arm, values in losses.items():
        rows: list[dict[str, Any]] = []
        for seed, loss in enumerate(values):
            for step, more in ((0, 2.0), (3, 1.0), (6, 0.0)):
                found = {} if loss is None else {"loss": loss + more, "accuracy": 0.5, "entropy": 0.4}
                kept = {"stage": "final", "seed": seed, "step": step, "rate_at_edge": edge, "diverged": loss is None}
                rows.append({**kept, **found})
        cells.append(FinishedCell({"task": "addition", "arm": arm}, Measurement(tuple(rows)), 1.0))
    config = asdict(TINY)
    return Result("study_test", "quick", config, tuple(cells), collect())


def test_conditions_are_compared_apart() -> None:
    short = under("3 steps", steps=3)
    tried = study("study_test", "t", "q?", "h", [Arm("a"), Arm("b")], [minus("a", "b")], TINY, TINY, conditions=[short])
    own = made({"a": [1.1, 2.1, 3.0, 4.1, 5.1], "b": [1.0, 2.0, 3.0, 4.0, 5.0]})
    other = made({"a": [3.1, 4.0, 5.1, 6.1, 7.1], "b": [1.0, 2.0, 3.0, 4.0, 5.0]})
    cells = [replace(cell, parameters={**cell.parameters, "condition": short.name}) for cell in other.cells]
    result = replace(own, cells=(*own.cells, *cells))
    found = study_findings(tried).in_record(result, {})
    assert found["intervals"]["addition: loss, a minus b"][0] == pytest.approx(0.08)
    under_short = found["conditions"]["3 steps"]
    assert under_short["changes"] == {"steps": 3}
    assert under_short["intervals"]["addition: loss, a minus b"][0] == pytest.approx(2.08), "at its own last step"
    assert any("with 3 steps" in sentence for sentence in found["sentences"])
    assert Chart.of(found["chart"]).y_label == "validation loss (nats)", "what the study asks about, as without them"
    chart = Chart.of(found["condition_chart"])
    assert chart.names == ("as stated", "3 steps") and chart.panels[0].series[0].mean == pytest.approx((0.08, 2.08))


def test_conditions_of_the_same_settings_are_recorded_one_after_the_other() -> None:
    short, wide = under("3 steps", steps=3), under("width 8 for 3 steps", steps=3, d_model=8)
    full = replace(TINY, conditions=("all",))
    tried = study("study_test", "t", "q?", "h", [Arm("a"), Arm("b")], [minus("a", "b")], TINY, full, "s", [short, wide])
    findings, own = study_findings(tried), made({"a": [1.1, 2.1, 3.0, 4.1, 5.1], "b": [1.0, 2.0, 3.0, 4.0, 5.0]})

    def run(condition: Condition, offset: float) -> Result:
        other = made({"a": [offset + k for k in range(5)], "b": [float(k) for k in range(5)]})
        cells = [replace(cell, parameters={**cell.parameters, "condition": condition.name}) for cell in other.cells]
        return replace(own, preset="custom", cells=(*own.cells, *cells))

    second = json.loads(json.dumps(findings.in_record(run(wide, 0.5), {})))
    assert list(second["conditions"]) == [wide.name] and second["preset"] == "custom"
    both = findings.in_record(run(short, 0.2), second)
    assert list(both["conditions"]) == [short.name, wide.name], "in the order of the study"
    assert (both["preset"], both["config"]["conditions"]) == ("full", ["all"])
    assert Chart.of(both["condition_chart"]).panels[0].series[0].mean == pytest.approx((0.08, 0.2, 0.5))
    assert "with 3 steps; +0.5" in " ".join(both["sentences"]) and "with width 8" in " ".join(both["sentences"])
    (trend,) = (sentence for sentence in both["sentences"] if "by width" in sentence)
    assert "+0.2 [+0.2, +0.2] at 4, +0.5 [+0.5, +0.5] at 8" in trend
    other = replace(run(short, 0.2), config={**own.config, "batch": 3})
    assert list(findings.in_record(other, second)["conditions"]) == [short.name], "other settings: nothing is kept"


def test_differences_are_paired_by_seed() -> None:
    result = made({"a": [1.1, 2.1, 3.1, 4.1, 5.1], "b": [1.0, 2.0, 3.0, 4.0, 5.0]})
    found = difference(result, "addition", minus("a", "b"))
    assert found.mean == pytest.approx(0.1) and found.high - found.low < 1e-9 and found.decided
    assert interval(list(by_seed(result, "addition", "a").values())).high > 4  # unpaired they could not be told apart


def test_a_seed_that_diverged_is_left_out_and_told() -> None:
    result = made({"a": [1.0, None, 3.0, 4.0, 5.0], "b": [1.0, 2.0, 3.0, 4.0, 5.5]})
    assert difference(result, "addition", minus("a", "b")).seeds == 4
    assert diverged(result, "addition", "a") == 1
    assert "1 of 5 diverged" in level_sentences(result)[0]
    assert any("favours a (addition)" in sentence for sentence in caveats(result))
    assert FINDINGS.in_record(result, {})["diverged"] == {"addition: a": 1}


def test_a_difference_of_differences() -> None:
    result = made({"a": [4.0] * 5, "b": [1.0] * 5, "c": [2.5] * 5, "d": [1.5] * 5})
    four = Contrast("ab minus cd", (("a", 1.0), ("b", -1.0), ("c", -1.0), ("d", 1.0)))
    assert difference(result, "addition", four).mean == pytest.approx(2.0)


def test_intervals_cover_and_power_is_as_told() -> None:
    source = np.random.default_rng(0)
    draws = source.normal(size=(4000, 6))
    found = [interval(row) for row in draws]
    assert 0.935 < np.mean([one.low < 0 < one.high for one in found]) < 0.965
    reach = float(np.mean([one.detectable for one in found]))
    power = np.mean([interval(row).decided for row in draws + reach])
    assert 0.72 < power < 0.88


def test_too_few_seeds_say_nothing() -> None:
    assert math.isnan(interval([1.0]).low) and interval([]).seeds == 0
    assert "nothing can be said" in compared(interval([1.0]), "loss", "a minus b")


def test_what_is_found_and_what_is_not() -> None:
    clear, unclear = interval([1.0, 1.1, 0.9, 1.0, 1.0]), interval([1.0, -1.1, 0.2, 0.4, -0.6])
    assert compared(clear, "loss", "x").startswith("x: loss +1 [")
    said = compared(unclear, "loss", "x")
    assert "no difference in loss found" in said and "with probability 80 %" in said


def test_slowdown() -> None:
    result = made({"slow": [2.0] * 5, "fast": [1.5] * 5})  # fast: 3.5, 2.5, 1.5 at 0, 3, 6; reaches 2.0 at 4.5
    found = slowdown(result, "addition", "slow", "fast")
    assert found.mean == pytest.approx(math.log(6 / 4.5))
    assert slowdown(result, "addition", "fast", "slow").mean == 0  # never reached: no slower, as far as is known
    assert first_reached([(0, 1.0), (5, 0.5)], 1.0) == 0


def test_rates_at_the_edge_are_confessed() -> None:
    result = made({"a": [1.0] * 5}, edge=True)
    assert any("edge of the tuning range for a (addition)" in sentence for sentence in caveats(result))
    assert not any("edge" in sentence for sentence in caveats(made({"a": [1.0] * 5})))


def test_what_is_recorded() -> None:
    found = FINDINGS.in_record(made({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [0.0, 1.0, 2.0, 3.0, 4.5]}), {})
    assert found["preset"] == "quick"
    assert found["intervals"]["addition: loss of a"][0] == 3.0
    assert found["intervals"]["addition: loss, a minus b"][3] == 5
    assert "addition: log slowdown, a minus b" in found["intervals"]
    differences = [1.0, 1.0, 1.0, 1.0, 0.5]
    effect = np.mean(differences) / np.std(differences, ddof=1)
    assert found["intervals"]["addition: loss, a minus b"][5] == pytest.approx(effect, rel=1e-4)
    assert len(found["intervals"]["addition: loss of a"]) == 5, "a level is no effect"
    assert found["sentences"] and all(sentence.endswith(".") for sentence in found["sentences"])
    chart = Chart.of(found["chart"])
    assert chart.legend == ("a", "b") and chart.panels[0].series[0].x == (0, 3, 6)
    assert chart.panels[0].series[0].mean == (5.0, 4.0, 3.0)
