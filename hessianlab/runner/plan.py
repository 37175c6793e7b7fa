"""A plan: an experiment in a configuration, its cells and keys, what is left to do, and how long it may take."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Parameters
from hessianlab.store import Code, Store, cell_key, code_of, question_key
from hessianlens.errors import InputError


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


MOST_CELLS = 200_000
"""A plan with more is refused: they would take a gigabyte before the first is measured."""

_LARGE = 100
"""Fields below this are left as they are, and those above it become `_SMALL` in the copy."""

_SMALL = 10


def check_size(experiment: Experiment[Any], config: Any) -> None:
    """Refuse a configuration that asks for far too many cells.

    A field that asks for cells asks for as many more when it grows by one, whatever its size: so they are counted in a
    small copy of the configuration.
    """
    large = dict(_large_fields(config))
    small = _with(config, dict.fromkeys(large, _SMALL))
    base = _count(experiment, small)
    for name, value in large.items():
        more = _count(experiment, _with(small, {name: _SMALL + 1}))
        if base is not None and more is not None and (expected := base + (more - base) * (value - _SMALL)) > MOST_CELLS:
            raise InputError(
                f"{name}: got {value}, which asks for {expected:,} cells of {experiment.name}, expected at most "
                f"{MOST_CELLS:,}."
            )


def _large_fields(config: Any, prefix: str = "") -> Iterator[tuple[str, int]]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _large_fields(value, f"{prefix}{field.name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > _LARGE:
            yield f"{prefix}{field.name}", value


def _with(config: Any, values: dict[str, int]) -> Any:
    """A copy with some fields replaced; None if there is no such configuration."""
    for name, value in values.items():
        if config is None:
            return None
        first, _, rest = name.partition(".")
        inner = _with(getattr(config, first), {rest: value}) if rest else value
        try:
            config = dataclasses.replace(config, **{first: inner})
        except InputError:
            config = None
    return config


def _count(experiment: Experiment[Any], config: Any) -> int | None:
    if config is None:
        return None
    try:
        return len(experiment.cells(config))
    except InputError:
        return None


_FILE = Path(__file__).with_name("typical_seconds.json")


@functools.cache
def typical_seconds() -> Mapping[str, Mapping[str, float]]:
    """Processor seconds of one core by experiment and preset, as measured once; not every preset is in it.

    >>> typical_seconds()["fig8"]["quick"] < typical_seconds()["fig6"]["paper"]
    True
    """
    found: Mapping[str, Mapping[str, float]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def typical_of(experiment: str, preset: str) -> float | None:
    """Seconds of one preset; None if nobody has measured it for this file.

    >>> typical_of("fig8", "custom") is None
    True
    """
    return typical_seconds().get(experiment, {}).get(preset)
