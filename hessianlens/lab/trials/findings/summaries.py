"""A study's results in numbers, as they are recorded beside the claims: every level and every comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hessianlens.lab.results import Result
from hessianlens.lab.results.table import choices
from hessianlens.lab.trials.findings.paired import Interval, by_seed, difference, diverged, interval, slowdown
from hessianlens.lab.trials.measure import Study

QUANTITIES = ("loss", "accuracy", "entropy")


def summary(result: Result, study: Study, extra: Mapping[str, Interval] | None = None) -> dict[str, Any]:
    """Intervals by name: ``task: quantity of arm`` and ``task: quantity, comparison``; with where they come from."""
    found: dict[str, Interval] = {}
    lost: dict[str, int] = {}
    for task in choices(result, "task"):
        for arm in choices(result, "arm"):
            lost[f"{task}: {arm}"] = diverged(result, task, arm)
            for quantity in QUANTITIES:
                found[f"{task}: {quantity} of {arm}"] = interval(list(by_seed(result, task, arm, quantity).values()))
        for comparison in study.comparisons:
            for quantity in QUANTITIES:
                found[f"{task}: {quantity}, {comparison.name}"] = difference(result, task, comparison, quantity)
            if len(comparison.arms) == 2:
                slow, fast = comparison.arms
                found[f"{task}: log slowdown, {comparison.name}"] = slowdown(result, task, slow, fast)
    return {
        "preset": result.preset,
        "config": {name: list(v) if isinstance(v, tuple) else v for name, v in result.config.items()},
        "created": result.provenance.created,
        "commit": result.provenance.commit,
        "seconds": round(result.seconds),
        "diverged": {name: number for name, number in lost.items() if number},
        "intervals": {name: _plain(value) for name, value in {**found, **(extra or {})}.items() if value.seeds > 1},
    }


def _plain(found: Interval) -> dict[str, float | int]:
    """Five digits, which is more than seeds can tell."""
    kept = asdict(found)
    return {name: v if name == "seeds" or math.isnan(v) else float(f"{v:.5g}") for name, v in kept.items()}
