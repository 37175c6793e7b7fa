"""Paired differences between arms, seed by seed, with Student's intervals; and how they are recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from hessianlab.experiments.statistics import choices, detectable, mean_interval, select
from hessianlab.results import Chart, Result, round_to_stored
from hessianlab.studies.training_study import Condition, Contrast, Study

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with Student's 95 % interval.

    Attributes:
        mean: The mean.
        low: Lower end.
        high: Upper end.
        seeds: Number of seeds.
        detectable: The smallest true mean that so many seeds, with this spread, tell from 0 four times out of five
            (two-sided test at 5 %).
    """

    mean: float
    low: float
    high: float
    seeds: int
    detectable: float

    @property
    def decided(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low > 0 or self.high < 0

    @property
    def effect(self) -> float:
        """The mean over the standard deviation of the draws: the effect size of a paired difference."""
        spread = self.detectable / detectable(self.seeds, LEVEL) if self.seeds > 1 else math.nan
        return self.mean / spread if spread else math.copysign(math.inf, self.mean)

    def scaled(self, factor: float) -> Interval:
        """In another unit."""
        low, high = sorted((factor * self.low, factor * self.high))
        return Interval(factor * self.mean, low, high, self.seeds, abs(factor) * self.detectable)


def interval(values: Sequence[float]) -> Interval:
    """Of independent seeds.

    >>> found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    >>> round(found.low, 2), round(found.high, 2), round(found.detectable, 2), round(found.effect, 2), found.decided
    (1.04, 4.96, 2.63, 1.9, True)
    """
    n = len(values)
    if n < 2:
        mean = float(values[0]) if n else math.nan
        return Interval(mean, math.nan, math.nan, n, math.nan)
    low, high = mean_interval(values, LEVEL)
    return Interval(float(np.mean(values)), low, high, n, detectable(n, LEVEL) * float(np.std(values, ddof=1)))


def of_condition(result: Result, condition: Condition = Condition()) -> Result:  # noqa: B008  frozen
    """The cells of one condition, and the configuration that they had."""
    cells = tuple(cell for cell in result.cells if cell.parameters.get("condition", "") == condition.name)
    return replace(result, config={**result.config, **dict(condition.changes)}, cells=cells)


def tried(result: Result, study: Study) -> list[Condition]:
    """The conditions that a result has, but for the study's own settings."""
    names = {cell.parameters.get("condition", "") for cell in result.cells}
    return [condition for condition in study.conditions if condition.name in names]


def by_seed(result: Result, task: str, arm: str, quantity: str = "loss", step: int | None = None) -> dict[int, float]:
    """A number of every reported seed that did not diverge, at a step; at the last one if none is given."""
    at = result.config["steps"] if step is None else step
    rows = select(result, task=task, arm=arm, stage="final", step=at)
    return {int(row["seed"]): float(row[quantity]) for row in rows if row.get(quantity) is not None}


def difference(result: Result, task: str, comparison: Contrast, quantity: str = "loss") -> Interval:
    """``arm - against``, or a difference of differences, over the seeds that all its arms have."""
    found = {arm: by_seed(result, task, arm, quantity) for arm in comparison.arms}
    return interval(weighted(found, dict(comparison.weights)))


def weighted(values: Mapping[str, Mapping[int, float]], weights: Mapping[str, float]) -> list[float]:
    """``sum_arm w_arm x_arm`` for every seed that all arms have.

    >>> weighted({"a": {0: 3.0, 1: 4.0}, "b": {0: 1.0}}, {"a": 1.0, "b": -1.0})
    [2.0]
    """
    seeds = sorted(set.intersection(*(set(found) for found in values.values())))
    return [sum(weight * values[arm][seed] for arm, weight in weights.items()) for seed in seeds]


def diverged(result: Result, task: str, arm: str) -> int:
    """How many of the reported seeds diverged."""
    rows = select(result, task=task, arm=arm, stage="final", step=result.config["steps"])
    return sum(bool(row["diverged"]) for row in rows)


def slowdown(result: Result, task: str, slow: str, fast: str) -> Interval:
    """Logarithm of how many times more steps `slow` takes to the loss that it has at its end, seed by seed.

    The steps of `fast` are those at which its validation loss first is as low, between checkpoints on a straight line;
    all its steps where it never is, so that the number is then a lower bound of 0.
    """
    steps = result.config["steps"]
    goals = by_seed(result, task, slow)
    rows = [row for row in select(result, task=task, arm=fast, stage="final") if row.get("loss") is not None]
    found = []
    for seed, goal in goals.items():
        course = [(int(r["step"]), float(r["loss"])) for r in rows if r["seed"] == seed]
        reached = first_reached(course, goal)
        if course:
            found.append(math.log(steps / max(1.0, steps if reached is None else reached)))
    return interval(found)


def first_reached(course: Sequence[tuple[int, float]], goal: float) -> float | None:
    """The step at which a loss first is as low as the goal, by straight lines between what was noted.

    >>> first_reached([(0, 3.0), (10, 1.0)], 2.0), first_reached([(0, 3.0), (10, 1.0)], 0.5)
    (5.0, None)
    """
    before: tuple[int, float] | None = None
    for step, loss in sorted(course):
        if loss <= goal:
            if before is None or before[1] == loss:
                return float(step)
            return before[0] + (before[1] - goal) / (before[1] - loss) * (step - before[0])
        before = step, loss
    return None


RECORDED_QUANTITIES = ("loss", "accuracy", "entropy")


def record(
    result: Result,
    levels: Mapping[str, Interval],
    comparisons: Mapping[str, Interval],
    sentences: Sequence[str],
    chart: Chart,
    lost: Mapping[str, int] | None = None,
    conditions: Mapping[str, Mapping[str, Any]] | None = None,
    protocol: Sequence[str] = (),
) -> dict[str, Any]:
    """Plain data: where the result comes from, intervals by name (comparisons with their effect size), words, a chart.

    `chart` shows what the study asks about.
    """
    return {
        "preset": result.preset,
        "config": plain_config(result.config),
        "created": result.provenance.created,
        "commit": result.provenance.commit,
        "seconds": round(result.seconds),
        "protocol": list(protocol),
        "sentences": list(sentences),
        "chart": chart.plain(),
        **in_numbers(levels, comparisons, lost or {}),
        "conditions": dict(conditions or {}),
    }


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they are read back from a file."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in config.items()}


def in_numbers(
    levels: Mapping[str, Interval], comparisons: Mapping[str, Interval], lost: Mapping[str, int]
) -> dict[str, Any]:
    """Intervals as rows of numbers (mean, low, high, seeds, detectable, effect size), and how many runs diverged."""
    found = {name: _row(value) for name, value in levels.items() if value.seeds > 1}
    found |= {name: [*_row(v), _finite(v.effect)] for name, v in comparisons.items() if v.seeds > 1}
    return {"diverged": {name: number for name, number in lost.items() if number}, "intervals": found}


def interval_of(row: Sequence[float | None]) -> Interval:
    """From a recorded row, whose last number may be an effect size.

    >>> interval_of([0.5, 0.25, 0.75, 5, None]).decided
    True
    """
    mean, low, high, seeds, reach = (math.nan if value is None else value for value in row[:5])
    return Interval(mean, low, high, int(seeds), reach)


def study_levels(result: Result) -> dict[str, Interval]:
    """``task: quantity of arm``."""
    return {
        f"{task}: {quantity} of {arm}": interval(list(by_seed(result, task, arm, quantity).values()))
        for task in choices(result, "task")
        for arm in choices(result, "arm")
        for quantity in RECORDED_QUANTITIES
    }


def study_comparisons(result: Result, study: Study) -> dict[str, Interval]:
    """``task: quantity, comparison``, and the logarithm of how much slower the first of two arms is."""
    found: dict[str, Interval] = {}
    for task in choices(result, "task"):
        for comparison in study.comparisons:
            for quantity in RECORDED_QUANTITIES:
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


def _row(found: Interval) -> list[float | None]:
    return [v if isinstance(v, int) else _finite(v) for v in astuple(found)]


def _finite(value: float) -> float | None:
    return round_to_stored(value) if math.isfinite(value) else None
