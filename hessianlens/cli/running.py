"""What commands that run experiments share: the choice of experiments, and a run with its progress shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hessianlens.cli.endings import INTERRUPTED, stop
from hessianlens.cli.run_display import shown_progress
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlens.lab.experiments.experiment import Experiment
    from hessianlens.lab.growth.findings.reference import Reference
    from hessianlens.lab.results import Result
    from hessianlens.lab.runner import Failure, Plan, Progress
    from hessianlens.lab.store import Store

STORE = Path("hessianlens.sqlite")
"""Where cells are kept if the user does not say."""


def chosen_experiments(names: Sequence[str]) -> list[Experiment[Any]]:
    """The experiments of these names, each once; all if there are none."""
    from hessianlens.lab.experiments.registry import EXPERIMENTS

    return [EXPERIMENTS[name] for name in dict.fromkeys(names or EXPERIMENTS)]


def published_means(path: Path | None) -> Reference | None:
    """Published means, if they are named or at hand."""
    from hessianlens.lab.growth.findings.reference import find_reference, read_reference

    found = find_reference(path)
    return read_reference(found) if found else None


def processes(jobs: int | None) -> int:
    """So many, or if nobody says how many, as many as fill this machine or the part of it that may be used."""
    if jobs is not None:
        return jobs
    from hessianlens.lab.runner import cores

    return cores()


def run_shown(
    plans: Sequence[Plan], store: Store, jobs: int, backend: str = "local", address: str | None = None
) -> tuple[Sequence[Result], Progress, Sequence[Failure]]:
    """The results, the last state of the run, and what failed. Ctrl-C ends the command and tells what is kept."""
    from hessianlens.lab.runner import CellsFailed, Progress, run

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
