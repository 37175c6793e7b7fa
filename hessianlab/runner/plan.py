"""What to run: experiments with their configurations, and the cells that are still to do, long ones first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Parameters
from hessianlab.runner.plan_size import check_size
from hessianlab.runner.typical import typical_of
from hessianlab.store import Code, Store, cell_key, code_of, question_key


@dataclass(frozen=True)
class Plan:
    """One experiment in one configuration.

    Attributes:
        experiment: What to measure.
        config: One of the experiment's presets, or a variation of it.
        preset: What the configuration is called: "quick", "paper", or "custom" after a change.
    """

    experiment: Experiment[Any]
    config: Any
    preset: str = "custom"

    @cached_property
    def cells(self) -> Sequence[Parameters]:
        """The units of work, in the experiment's own order."""
        check_size(self.experiment, self.config)
        return tuple(self.experiment.cells(self.config))

    @cached_property
    def code(self) -> Code:
        """The code that measures them."""
        return code_of(self.experiment.measure)

    @cached_property
    def keys(self) -> Sequence[str]:
        """The store's keys of the cells, in the same order."""
        return tuple(cell_key(self.experiment.name, parameters, self.code) for parameters in self.cells)

    @cached_property
    def key_set(self) -> frozenset[str]:
        """The same, each once."""
        return frozenset(self.keys)


@dataclass(frozen=True)
class Task:
    """One cell to do.

    Attributes:
        key: In the store.
        seconds: How long it took when it was last measured, by any code; None if it never was.
    """

    plan: Plan
    parameters: Parameters
    key: str
    seconds: float | None


def tasks_to_do(plans: Sequence[Plan], store: Store | None) -> list[Task]:
    """Every cell the store lacks, once, in the order to run them; all of them if there is no store yet."""
    tasks: dict[str, Task] = {}
    for plan in plans:
        known = store.known(plan.experiment.name, plan.code) if store else frozenset()
        timings = store.seconds(plan.experiment.name) if store else {}
        for parameters, key in zip(plan.cells, plan.keys, strict=True):
            if key not in known and key not in tasks:
                seconds = timings.get(question_key(plan.experiment.name, parameters))
                tasks[key] = Task(plan, parameters, key, seconds)
    return _order(list(tasks.values()))


def forecast(plan: Plan, store: Store | None) -> float | None:
    """Seconds on one core for a whole plan: as its cells took when last measured by any code, or typically take.

    Cells of the plan that were never measured count as the mean of those that were. None if nobody knows.
    """
    timings = store.seconds(plan.experiment.name) if store else {}
    keys = {question_key(plan.experiment.name, parameters) for parameters in plan.cells}
    seen = [timings[key] for key in keys & timings.keys()]
    return sum(seen) / len(seen) * len(keys) if seen else typical_of(plan.experiment.name, plan.preset)


def _order(tasks: Sequence[Task]) -> list[Task]:
    """Cells of unknown length first, one of each experiment in turn; then the longest first.

    The unknown ones tell early how long the rest will take, and a long cell at the end would leave the others idle.
    """
    unknown: Mapping[str, list[Task]] = {task.plan.experiment.name: [] for task in tasks}
    for task in tasks:
        if task.seconds is None:
            unknown[task.plan.experiment.name].append(task)
    in_turn = [task for turn in itertools.zip_longest(*unknown.values()) for task in turn if task is not None]
    timed = [task for task in tasks if task.seconds is not None]
    return in_turn + sorted(timed, key=lambda task: -(task.seconds or 0.0))
