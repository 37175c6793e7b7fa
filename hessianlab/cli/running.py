"""What commands that run experiments share: the choice of experiments, and a run with its progress shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hessianlab.cli.run_display import shown_progress
from hessianlens.cli.endings import INTERRUPTED, stop
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment
    from hessianlab.growth.reference import Reference
    from hessianlab.results import Result
    from hessianlab.runner import Failure, Plan, Progress
    from hessianlab.store import Store

STORE = Path("hessianlens.sqlite")
"""Where cells are kept if the user does not say."""


def chosen_experiments(names: Sequence[str]) -> list[Experiment[Any]]:
    """The experiments of these names, each once; all if there are none."""
    from hessianlab.experiments.registry import EXPERIMENTS

    return [EXPERIMENTS[name] for name in dict.fromkeys(names or EXPERIMENTS)]


def catalogue(experiments: Sequence[Experiment[Any]], path: Path) -> list[dict[str, Any]]:
    """What there is to run, how many cells each preset has, and how long they took in this store, by whatever code."""
    from contextlib import nullcontext

    from hessianlab.runner import configure, forecast
    from hessianlab.store import open_store

    entries: list[dict[str, Any]] = []
    with open_store(path, readonly=True) if path.exists() else nullcontext(None) as store:
        for experiment in experiments:
            presets = {}
            for preset in experiment.presets:
                (plan,) = configure([experiment], preset)
                presets[preset] = {"cells": len(plan.cells), "seconds": forecast(plan, store)}
            about = {"experiment": experiment.name, "title": experiment.title, "source": experiment.source}
            entries.append({**about, "question": experiment.question, "presets": presets})
    return entries


def planned(plans: Sequence[Plan], path: Path, jobs: int) -> Progress:
    """What a run would do, given what the store has."""
    from hessianlab.runner import start_progress, tasks_to_do
    from hessianlab.store import leftovers, open_store

    if not path.exists():
        progress = start_progress(plans, tasks_to_do(plans, None))
    else:
        with open_store(path, readonly=True) as store:
            progress = start_progress(plans, tasks_to_do(plans, store))
            progress.notes += map(str, leftovers(store, {plan.experiment.name: plan.code for plan in plans}))
    progress.workers = jobs
    return progress


def draw(result: Result, folder: Path, reference: Reference | None = None) -> list[str]:
    """Write an experiment's pictures into a folder; the files."""
    from hessianlab.plots.picture import save
    from hessianlab.presentations import pictures_of

    drawn = pictures_of(result, reference)
    return [str(file) for p in drawn for file in save(p.figure, folder, f"{result.experiment}-{p.name}")]


def published_means(path: Path | None) -> Reference | None:
    """Published means, if they are named or at hand."""
    from hessianlab.growth.reference import find_reference, read_reference

    found = find_reference(path)
    return read_reference(found) if found else None


def processes(jobs: int | None) -> int:
    """So many, or if nobody says how many, as many as fill this machine or the part of it that may be used."""
    if jobs is not None:
        return jobs
    from hessianlab.runner import cores

    return cores()


def run_shown(
    plans: Sequence[Plan], store: Store, jobs: int, backend: str = "local", address: str | None = None
) -> tuple[Sequence[Result], Progress, Sequence[Failure]]:
    """The results, the last state of the run, and what failed. Ctrl-C ends the command and tells what is kept."""
    from hessianlab.runner import CellsFailed, Progress, run

    with waiting("Loading the libraries"):
        import torch  # noqa: F401  every cell needs it, and the time until the first one is to be explained
    state, told = Progress([]), list[int]()
    try:
        with shown_progress() as show:

            def on_progress(progress: Progress) -> None:
                nonlocal state
                if progress is not state:
                    state = progress
                    for note in progress.notes:
                        typer.echo(f"hessianlens: {note}.", err=True)
                if progress.elsewhere and not told:
                    told.append(progress.elsewhere)
                    typer.echo("hessianlens: another run on this store is measuring some of the cells.", err=True)
                show(progress)

            return run(plans, store, jobs, backend, address, on_progress), state, ()
    except CellsFailed as failed:
        return failed.results, state, failed.failures
    except KeyboardInterrupt:
        # Asked of the store: the last cell may have come between its being kept and its being counted.
        found = sum(len(store.known(plan.experiment.name, plan.code).intersection(plan.keys)) for plan in plans)
        kept = f"{found} of {state.planned} cells are kept in {store.path}"
        stop(f"interrupted; {kept}; run the same command again to continue.", INTERRUPTED)
