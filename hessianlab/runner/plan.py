"""Plans: experiments in a configuration, their cells and keys, what is left to do, and how long that may take."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

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
    for one in dataclasses.fields(config):
        value = getattr(config, one.name)
        if dataclasses.is_dataclass(value):
            yield from _large_fields(value, f"{prefix}{one.name}.")
        elif isinstance(value, int) and not isinstance(value, bool) and value > _LARGE:
            yield f"{prefix}{one.name}", value


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


Outcome = Literal["stored", "new", "failed"]


@dataclass
class Tally:
    """The cells of one plan.

    Attributes:
        planned: All of them.
        stored: Found in the store, those among them that another run has put there during this one.
        new: Measured in this run.
        failed: Tried in this run without success.
        seconds: Processor time of the new ones.
        forecast: Expected seconds of those still to do whose length is known from earlier runs.
        timed: How many those are.
        typical: Seconds of a cell as it typically takes, until one of this run is measured; None if nobody knows.
    """

    experiment: str
    preset: str
    planned: int
    stored: int = 0
    new: int = 0
    failed: int = 0
    seconds: float = 0.0
    forecast: float = 0.0
    timed: int = 0
    typical: float | None = None

    def count(self, outcome: Outcome, seconds: float, forecast: float | None) -> None:
        """Count one cell.

        Args:
            outcome: What became of it.
            seconds: How long it took, if it is new.
            forecast: How long it was expected to take; None if nobody knew.
        """
        setattr(self, outcome, getattr(self, outcome) + 1)
        self.seconds += seconds
        if forecast is not None:
            self.forecast -= forecast
            self.timed -= 1

    @property
    def to_do(self) -> int:
        """Neither stored nor tried yet."""
        return self.planned - self.stored - self.new - self.failed

    @property
    def work_left(self) -> float | None:
        """Seconds of work still to do: from earlier runs, else as the cells of this run, else as cells typically take.

        None if nobody knows.

        >>> Tally("fig8", "quick", planned=10).work_left is None, Tally("fig8", "quick", 10, typical=0.5).work_left
        (True, 5.0)
        """
        unknown = self.to_do - self.timed
        each = self.seconds / self.new if self.new else self.typical
        if unknown > 0 and each is None:
            return None
        return self.forecast + (unknown * each if unknown > 0 and each is not None else 0.0)


@dataclass
class Progress:
    """The state of a run.

    Attributes:
        tallies: One a plan, in the order of the plans.
        workers: How many cells run at a time.
        elsewhere: How many cells another run on the same store was measuring when this one last looked.
        notes: What the user should know, e.g. about cells of other code.
    """

    tallies: Sequence[Tally]
    workers: int = 1
    elsewhere: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def planned(self) -> int:
        """All cells."""
        return sum(tally.planned for tally in self.tallies)

    @property
    def kept(self) -> int:
        """Cells in the store."""
        return sum(tally.stored + tally.new for tally in self.tallies)

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the run; None while the length of some experiment is not known."""
        left = [tally.work_left for tally in self.tallies]
        known = [seconds for seconds in left if seconds is not None]
        return sum(known) / self.workers if len(known) == len(left) else None


def start_progress(plans: Sequence[Plan], tasks: Iterable[Task]) -> Progress:
    """The state before the first cell."""
    to_do = {task.key: task for task in tasks}
    tallies = []
    for plan in plans:
        keys = plan.key_set
        tally = Tally(plan.experiment.name, plan.preset, len(keys), stored=len(keys - to_do.keys()))
        timed = [to_do[key].seconds for key in keys & to_do.keys()]
        known = [seconds for seconds in timed if seconds is not None]
        tally.forecast, tally.timed = sum(known), len(known)
        whole = typical_of(plan.experiment.name, plan.preset)
        tally.typical = None if whole is None else whole / max(len(keys), 1)
        tallies.append(tally)
    return Progress(tallies)
