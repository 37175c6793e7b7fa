"""Which activations fall behind, and how wide the range of learning rates is that works."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from hessianlab.results import Result
from hessianlab.results.table import choices, numbers, select
from hessianlab.studies.activations.measure import EXPERIMENT, OTHERS, SOFTMAX
from hessianlab.trials.findings.paired import Interval, by_seed, difference, interval
from hessianlab.trials.findings.reading import study_findings
from hessianlab.trials.measure.config import TASKS

NEAR = 1.1
"""A learning rate works if its loss is within this factor of the best of the same arm."""


def tell(result: Result) -> list[str]:
    """Who is worse, who is better, who cannot be told apart."""
    sentences = []
    for task in choices(result, "task"):
        groups: dict[str, list[str]] = {"ends worse": [], "ends better": [], "cannot be told from softmax": []}
        for comparison in EXPERIMENT.comparisons:
            found = difference(result, task, comparison)
            place = (
                "cannot be told from softmax" if not found.decided else "ends worse" if found.low > 0 else "ends better"
            )
            groups[place].append(comparison.arms[0].replace("_", " "))
        told = "; ".join(f"{place}: {', '.join(names)}" for place, names in groups.items() if names)
        sentences.append(f"On {TASKS[task]}, against softmax at its own tuned rate: {told}.")
    return sentences


def intervals(result: Result) -> Mapping[str, Interval]:
    """Loss and share right over those of softmax, minus 1; and the share of rates that work."""
    found = {}
    for task in choices(result, "task"):
        for quantity, name in product(("loss", "accuracy"), OTHERS):
            base, other = (by_seed(result, task, arm, quantity) for arm in (SOFTMAX, name))
            relative = [other[s] / base[s] - 1 for s in sorted(other.keys() & base.keys()) if base[s] > 0]
            found[f"{task}: relative {quantity}, {name} over softmax"] = interval(relative)
        for name in (SOFTMAX, *OTHERS):
            found[f"{task}: share of rates that work, {name}"] = interval(workable(result, task, name))
    return found


def workable(result: Result, task: str, arm: str) -> list[float]:
    """For every seed that tunes, the share of the learning rates whose loss is near the best of that seed."""
    rows = select(result, task=task, arm=arm, stage="tuning")
    shares = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        mine = [row for row in rows if row["seed"] == seed]
        losses = numbers(mine, "loss")
        shares.append(float((losses <= NEAR * losses.min()).sum()) / len(mine) if len(losses) else 0.0)
    return shares


FINDINGS = study_findings(EXPERIMENT, tell, intervals)
