"""Running plans: what the store has is not measured again, what is measured is kept at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from hessianlens.errors import expect
from hessianlens.lab.results import Parameters, Provenance, Result, collect
from hessianlens.lab.runner.plan import Plan, Task, tasks_to_do
from hessianlens.lab.runner.progress import Progress, start_progress
from hessianlens.lab.runner.work import Answer, order
from hessianlens.lab.runner.workers import open_workers
from hessianlens.lab.store import Store, fail_cell, finish_run, get_run, leftovers, load_run, start_run


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
        super().__init__(f"{len(failures)} cells failed, the first: {failures[0]}")
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
    its randomness from its parameters. Whatever ends the run, finished cells are in the store.

    Args:
        plans: Experiments with their configurations.
        store: Open for writing; only this process writes to it.
        jobs: Processes, for the backend "local".
        backend: "local", "dask" or "ray".
        address: Of the cluster's scheduler.
        on_progress: Called before the first cell and after each with the state of the run, always the same object.

    Raises:
        CellsFailed: At the end, if there are cells that could not be measured.
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
        keeper = _Keeper(store, provenance, {task.key: task for task in tasks}, plans, numbers, progress, failures)
        with opening as workers:
            progress.workers = workers.count
            orders = [order(t.key, t.plan.experiment, t.parameters, t.plan.code) for t in tasks]
            with closing(workers.answers(orders)) as answers:  # whatever ends this, the rest is called off at once
                for answer in answers:
                    keeper.keep(answer)
                    on_progress(progress)
    return _conclude(plans, numbers, store, failures)


@dataclass
class _Keeper:
    """Takes answers as they come: into the store, and into the state of the run."""

    store: Store
    provenance: Provenance
    tasks: Mapping[str, Task]
    plans: Sequence[Plan]
    runs: Sequence[int]
    progress: Progress
    failures: list[Failure]

    def keep(self, answer: Answer) -> None:
        expect(
            not answer.other_code,
            f"workers: {answer.message}; install the same version everywhere, leave its files alone during a run, and "
            "run again: what was measured so far is kept.",
        )
        task = self.tasks[answer.key]
        if answer.cell is not None:
            self.store.put(task.plan.experiment.name, answer.cell, task.plan.code, self.provenance)
        else:
            self.failures.append(Failure(task.plan.experiment.name, task.parameters, answer.message))
        for plan, run, tally in zip(self.plans, self.runs, self.progress.tallies, strict=True):
            if answer.key in plan.keys:
                tally.count(None if answer.cell is None else answer.cell.seconds, task.seconds)
                if answer.cell is None:
                    fail_cell(self.store, run, task.parameters, answer.message)


def _conclude(plans: Sequence[Plan], runs: Sequence[int], store: Store, failures: Sequence[Failure]) -> list[Result]:
    complete = []
    for plan, number in zip(plans, runs, strict=True):
        if store.known(plan.experiment.name, plan.code).issuperset(plan.keys):
            finish_run(store, number, plan.experiment.name, plan.cells, plan.code)
            complete.append(load_run(store, get_run(store, number)))
    if failures:
        raise CellsFailed(failures, complete)
    expect(len(complete) == len(plans), f"store: cells vanished from {store.path} during the run; run again.")
    return complete
