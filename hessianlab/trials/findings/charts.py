"""Courses of trainings in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.results.table import choices, select
from hessianlab.trials.findings.paired import Interval, by_seed, interval
from hessianlab.trials.measure.config import TASKS

BANDS = "Means over seeds; bands are 95 % intervals."

QUANTITIES = {
    "loss": "validation loss (nats)",
    "accuracy": "share right",
    "entropy": "entropy of attention / uniform",
}

_ABOUT = {
    "loss": "Validation loss along training at the tuned learning rate.",
    "accuracy": "Share that is right along training at the tuned learning rate.",
    "entropy": "Entropy of the rows of attention over that of equal weights, mean over rows, heads and layers: 1 is "
    "uniform, 0 is one-hot. Weights that are no distribution are taken by their sizes.",
}


def series(name: str, points: Iterable[tuple[float, Interval]]) -> Series:
    """Of the points that have an interval."""
    kept = [(x, found) for x, found in points if found.seeds > 1]
    ends = (tuple(getattr(found, end) for _, found in kept) for end in ("mean", "low", "high"))
    return Series(name, tuple(x for x, _ in kept), *ends)


def courses(result: Result, quantity: str = "loss", arms: Sequence[str] | None = None) -> Chart:
    """A quantity along training, a panel a task and a series an arm."""
    tasks, shown = choices(result, "task"), list(arms or choices(result, "arm"))
    panels = tuple(Panel(TASKS[t], tuple(_course(result, t, arm, quantity) for arm in shown)) for t in tasks)
    return Chart(f"{_ABOUT[quantity]} {BANDS}", "steps", QUANTITIES[quantity], panels, columns=len(tasks))


def _course(result: Result, task: str, arm: str, quantity: str) -> Series:
    steps = sorted({int(str(row["step"])) for row in select(result, task=task, arm=arm, stage="final")})
    found = (interval(list(by_seed(result, task, arm, quantity, step).values())) for step in steps)
    return series(arm, zip(steps, found, strict=True))
