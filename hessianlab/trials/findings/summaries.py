"""A study's results as they are recorded beside the claims: every level and comparison, sentences, and a chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hessianlab.results import Chart, Result
from hessianlab.results.chart import rounded
from hessianlab.results.table import choices
from hessianlab.trials.findings.paired import Interval, by_seed, difference, diverged, interval, slowdown
from hessianlab.trials.measure import Study

QUANTITIES = ("loss", "accuracy", "entropy")


def record(
    result: Result,
    levels: Mapping[str, Interval],
    comparisons: Mapping[str, Interval],
    sentences: Sequence[str],
    chart: Chart,
    lost: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Plain data: where the result comes from, intervals by name (comparisons with their effect size), words, chart."""
    found = {name: _plain(value) for name, value in levels.items() if value.seeds > 1}
    found |= {name: {**_plain(v), "effect": _finite(v.effect)} for name, v in comparisons.items() if v.seeds > 1}
    return {
        "preset": result.preset,
        "config": {name: list(v) if isinstance(v, tuple) else v for name, v in result.config.items()},
        "created": result.provenance.created,
        "commit": result.provenance.commit,
        "seconds": round(result.seconds),
        "diverged": {name: number for name, number in (lost or {}).items() if number},
        "sentences": list(sentences),
        "chart": chart.plain(),
        "intervals": found,
    }


def study_levels(result: Result) -> dict[str, Interval]:
    """``task: quantity of arm``."""
    return {
        f"{task}: {quantity} of {arm}": interval(list(by_seed(result, task, arm, quantity).values()))
        for task in choices(result, "task")
        for arm in choices(result, "arm")
        for quantity in QUANTITIES
    }


def study_comparisons(result: Result, study: Study) -> dict[str, Interval]:
    """``task: quantity, comparison``, and the logarithm of how much slower the first of two arms is."""
    found: dict[str, Interval] = {}
    for task in choices(result, "task"):
        for comparison in study.comparisons:
            for quantity in QUANTITIES:
                found[f"{task}: {quantity}, {comparison.name}"] = difference(result, task, comparison, quantity)
            if len(comparison.arms) == 2:
                slow, fast = comparison.arms
                found[f"{task}: log slowdown, {comparison.name}"] = slowdown(result, task, slow, fast)
    return found


def study_lost(result: Result) -> dict[str, int]:
    """``task: arm``: how many of its seeds diverged."""
    return {
        f"{task}: {arm}": diverged(result, task, arm)
        for task in choices(result, "task")
        for arm in choices(result, "arm")
    }


def _plain(found: Interval) -> dict[str, float | None]:
    return {name: v if name == "seeds" else rounded(v) for name, v in asdict(found).items()}


def _finite(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None
