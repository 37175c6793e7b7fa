"""Running plans: what the store has is not measured again, what is measured is kept at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from hessianlab.results import Parameters, Provenance, Result, collect
from hessianlab.runner.plan import Outcome, Plan, Progress, Task, start_progress, tasks_to_do
from hessianlab.runner.workers import CellAnswer, Order, open_workers, order
from hessianlab.store import (
    Leases,
    Store,
    cell_key,
    fail_cell,
    finish_run,
    get_run,
    leftovers,
    load_run,
    start_run,
    taking_part,
)
from hessianlens.errors import expect
from hessianlens.sizes import number_of

_POLL_SECONDS = 0.3
"""How often to look whether other runs have measured what is left, or are gone."""


@dataclass(frozen=True)
class Failure:
    """A cell that could not be measured."""

    experiment: str
    parameters: Parameters
    message: str

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.experiment} ({listed}): {self.message}"


class CellsFailed(RuntimeError):
    """Some cells could not be measured; all the others are in the store.

    Attributes:
        failures: Which ones, and why.
        results: Of the experiments that are complete all the same.
    """

    def __init__(self, failures: Sequence[Failure], results: Sequence[Result]) -> None:
        super().__init__(f"{number_of(len(failures), 'cell')} failed, the first: {failures[0]}")
        self.failures = tuple(failures)
        self.results = tuple(results)


def run(
    plans: Sequence[Plan],
    store: Store,
    jobs: int = 1,
    backend: str = "local",
    address: str | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> list[Result]:
    """Measure every cell that the store lacks, and return the result of each plan.

    The numbers do not depend on `jobs`, on the backend, or on interruptions: a cell runs on one thread and takes all of
    its randomness from its parameters. Whatever ends the run, finished cells are in the store. Runs on one store share
    the work: a cell that another run is measuring is waited for, and taken over if that run is killed.

    Args:
        plans: Experiments with their configurations.
        store: Open for writing.
        jobs: Processes, for the backend "local".
        backend: "local" or "dask".
        address: Of the cluster's scheduler.
        on_progress: Called before the first cell and after each with the state of the run, always the same object.

    Raises:
        CellsFailed: At the end, if there are cells that could not be measured.
        StoreLost: If the store's file is deleted or replaced; what it held has been copied.
    """
    opening = open_workers(backend, jobs, address)
    provenance = collect()
    tasks = tasks_to_do(plans, store)
    progress = start_progress(plans, tasks)
    codes = {plan.experiment.name: plan.code for plan in plans}
    progress.notes += map(str, leftovers(store, codes))
    on_progress(progress)
    numbers = [
        start_run(store, plan.experiment.name, plan.preset, plan.config, plan.code, provenance) for plan in plans
    ]
    failures: list[Failure] = []
    if tasks:
        with opening as workers, taking_part(store) as leases:
            progress.workers = workers.count
            to_do = {task.key: task for task in tasks}
            keeper = _ResultWriter(store, leases, provenance, to_do, plans, numbers, progress, failures, on_progress)
            while keeper.to_do:
                with closing(workers.answers(keeper.orders())) as answers:  # whatever ends this, the rest is called off
                    for answer in answers:
                        keeper.keep(answer)
                if keeper.to_do:  # other runs measure what is left
                    time.sleep(_POLL_SECONDS)
    return _conclude(plans, numbers, store, failures)


@dataclass
class _ResultWriter:
    """Gives orders and takes answers: into the store, and into the state of the run."""

    store: Store
    leases: Leases
    provenance: Provenance
    to_do: dict[str, Task]
    plans: Sequence[Plan]
    runs: Sequence[int]
    progress: Progress
    failures: list[Failure]
    on_progress: Callable[[Progress], None]
    in_hand: dict[str, Task] = field(default_factory=dict)

    def orders(self) -> Iterator[Order]:
        """Cells that nobody has measured or is measuring, each taken when it is asked for."""
        while True:
            taken = self.leases.take(list(self.to_do))
            for key in taken.finished:
                self._count(self.to_do.pop(key), "stored")
            changed = self.progress.elsewhere != taken.elsewhere
            self.progress.elsewhere = taken.elsewhere
            if changed or taken.finished:
                self.on_progress(self.progress)
            if taken.key is None:
                return
            task = self.in_hand[taken.key] = self.to_do.pop(taken.key)
            yield order(task.key, task.plan.experiment, task.parameters, task.plan.code)

    def keep(self, answer: CellAnswer) -> None:
        """One answer: the cell, or a failure."""
        expect(
            not answer.other_code,
            f"workers: {answer.message}; install the same version everywhere, leave its files alone during a run, and "
            "run again: what was measured so far is kept.",
        )
        task = self.in_hand.pop(answer.key)
        if answer.cell is not None:
            self.store.put(task.plan.experiment.name, answer.cell, task.plan.code, self.provenance)
            self._count(task, "new", answer.cell.seconds)
        else:
            self.leases.give_back(answer.key)
            self.failures.append(Failure(task.plan.experiment.name, task.parameters, answer.message))
            for plan, run in zip(self.plans, self.runs, strict=True):
                if answer.key in plan.key_set:
                    fail_cell(self.store, run, task.parameters, answer.message)
            self._count(task, "failed")
        self.on_progress(self.progress)

    def _count(self, task: Task, outcome: Outcome, seconds: float = 0.0) -> None:
        for plan, tally in zip(self.plans, self.progress.tallies, strict=True):
            if task.key in plan.key_set:
                tally.count(outcome, seconds, task.seconds)


def _conclude(plans: Sequence[Plan], runs: Sequence[int], store: Store, failures: Sequence[Failure]) -> list[Result]:
    complete = []
    for plan, number in zip(plans, runs, strict=True):
        if store.known(plan.experiment.name, plan.code).issuperset(plan.keys):
            finish_run(store, number, plan.experiment.name, plan.cells, plan.code)
            complete.append(load_run(store, get_run(store, number)))
    failed = {cell_key(failure.experiment, failure.parameters, plan.code) for failure in failures for plan in plans}
    store.check_kept(key for plan in plans for key in plan.keys if key not in failed)
    if failures:
        raise CellsFailed(failures, complete)
    expect(len(complete) == len(plans), f"store: cells vanished from {store.path} during the run; run again.")
    return complete
