"""Commands that run experiments: which ones, progress while they run, and tables at the end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hessianlab.wording import duration
from hessianlens.cli.exit_codes import INTERRUPTED, stop
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment
    from hessianlab.growth.comparison import SeriesComparison
    from hessianlab.growth.reference import Reference
    from hessianlab.results import Result
    from hessianlab.runner import Failure, Plan, Progress, Tally
    from hessianlab.store import Store


_LOG_SECONDS = 30.0
"""Between two lines of progress where there is no terminal."""

_WHOLE = ("experiment", "series", "ours/published")
"""Columns that a narrow terminal does not break."""


@contextmanager
def progress_display() -> Iterator[Callable[[Progress], None]]:
    """Takes the state of a run and shows it on standard error: bars on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        yield _logged_progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    named = TextColumn("{task.description}", markup=False)
    columns = (named, BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
    with Bars(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bars:
        tasks: dict[int, TaskID] = {}

        def show(progress: Progress) -> None:
            for number, tally in enumerate(progress.tallies):
                if number not in tasks:
                    tasks[number] = bars.add_task(tally.experiment, total=tally.planned, left="")
                bars.update(tasks[number], completed=_tried(tally), left=_left(tally.work_left, progress.workers))
            if -1 not in tasks:
                tasks[-1] = bars.add_task("all", total=progress.planned, left="")
            done = sum(map(_tried, progress.tallies))
            bars.update(tasks[-1], completed=done, left=_left(progress.seconds_left, 1))

        yield show


def _tried(tally: Tally) -> int:
    return tally.planned - tally.to_do


def _left(seconds: float | None, workers: int) -> str:
    if seconds is None:
        return "time left not known yet"
    return f"{duration(seconds / workers)} left" if seconds > 0 else ""


def _logged_progress() -> Callable[[Progress], None]:
    last = time.monotonic()

    def show(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            left = duration(progress.seconds_left)
            typer.echo(f"{progress.kept} of {progress.planned} cells; time left: {left}", err=True)

    return show


def print_outcome(progress: Progress, exponents: Sequence[dict[str, Any]], pictures: Mapping[str, list[str]]) -> None:
    """Cells that were measured, those from the store, and the processor time of all workers together."""
    headings = ["experiment", "preset", "cells", "new", "from store", "failed", "processor time"]
    rows = [
        [t.experiment, t.preset, t.planned, t.new, t.stored, t.failed, duration(t.seconds)] for t in progress.tallies
    ]
    if exponents:
        headings.append("exponents as predicted")
        for row in rows:
            row.append(_agreement([fit for fit in exponents if fit["experiment"] == row[0]]))
    print_table(headings, rows)
    for name, files in pictures.items():
        if files:
            typer.echo(f"{name}: {', '.join(files)}")


_PUBLISHED = {
    "series": "series",
    "ratio": "ours/published",
    "points": "points",
    "within_2": "in 2 s.e.",
    "within_3": "in 3 s.e.",
    "noise": "left out",
}
"""Columns of the comparison with published means; s.e.: points that differ by up to so many standard errors."""


def print_published(compared: Mapping[str, Sequence[SeriesComparison]], path: Path) -> None:
    """Growth figures against published means, series by series, and which of them have none to be compared with."""
    from hessianlab.growth.comparison import agreement_in_words

    for name, series in compared.items():
        if series:
            typer.echo(f"\n{name} against the published means ({path})")
            rows = [[row[column] for column in _PUBLISHED] for row in (one.in_words() for one in series)]
            print_table(list(_PUBLISHED.values()), rows)
            typer.echo(agreement_in_words(series) or "No published point is sound.")
    without = [name for name, series in compared.items() if not series]
    if without:
        typer.echo(
            f"Not compared with published means: {', '.join(without)} (other size or batch than published, or not in "
            f"{path})."
        )


def print_forecast(progress: Progress) -> None:
    """What a run would do."""
    headings = ["experiment", "preset", "cells", "in store", "to do", "time left"]
    rows = [
        [t.experiment, t.preset, t.planned, t.stored, t.to_do, _known(t.work_left, progress.workers)]
        for t in progress.tallies
    ]
    print_table(headings, rows)
    for note in progress.notes:
        typer.echo(f"{note}.")
    typer.echo(f"Time left with {progress.workers} at a time, a core each: {duration(progress.seconds_left)}.")


def print_catalogue(entries: Sequence[dict[str, Any]], path: Path) -> None:
    """The experiments, with the size of each preset; words wrap where the terminal ends."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    for entry in entries:
        sizes = [(name, entry["presets"][name]) for name in entry["presets"]]
        description = "; ".join(f"{name}: {size['cells']} cells, {duration(size['seconds'])}" for name, size in sizes)
        console.print(Text.assemble((entry["experiment"], "bold"), f" - {entry['source']}"))
        for words in (entry["question"], description):
            console.print(Padding(Text(words), (0, 0, 0, 4)))
    console.print(
        Text(
            f"Times are processor times of all cells, as measured in earlier runs ({path}); of presets that have not "
            "run here as they typically take on one core of a laptop."
        )
    )


def print_findings(findings: Mapping[str, Sequence[str]]) -> None:
    """What was found, by the name of a figure."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, sentences in findings.items():
        for number, sentence in enumerate(sentences):
            table.add_row(escape(name) if number == 0 else "", escape(sentence))
    if findings:
        Console(highlight=False).print(table)


def print_failures(failures: Sequence[Failure]) -> None:
    """On standard error: each message once, with one cell as an example."""
    alike: dict[str, list[Failure]] = {}
    for failure in failures:
        alike.setdefault(failure.message, []).append(failure)
    for group in alike.values():
        more = f"; and {len(group) - 1} more cells with the same message" if len(group) > 1 else ""
        typer.echo(f"hessianlens: failed: {group[0]}{more}", err=True)


def _known(seconds: float | None, workers: int) -> str:
    return duration(None if seconds is None else seconds / workers)


def _agreement(fits: Sequence[dict[str, Any]]) -> str:
    """How many of the fitted exponents agree with their prediction; those that nothing decides are not counted."""
    decided = [fit["agrees"] for fit in fits if fit["agrees"] is not None]
    return f"{sum(decided)} of {len(decided)}" if decided else ""


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A plain table on standard output; columns of whole numbers to the right."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, values in zip(headings, zip(*rows, strict=True), strict=True):
        counts = all(isinstance(value, int) for value in values)
        table.add_column(heading, justify="right" if counts else "left", no_wrap=heading in _WHOLE)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    Console().print(table)


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


def planned_progress(plans: Sequence[Plan], path: Path, jobs: int) -> Progress:
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


def run_with_progress(
    plans: Sequence[Plan], store: Store, jobs: int, backend: str = "local", address: str | None = None
) -> tuple[Sequence[Result], Progress, Sequence[Failure]]:
    """The results, the last state of the run, and what failed. Ctrl-C ends the command and says what is saved."""
    from hessianlab.runner import CellsFailed, Progress, run

    with waiting("Loading the libraries"):
        import torch  # noqa: F401  every cell needs it, and the time until the first one is to be explained
    state, announced = Progress([]), list[int]()
    try:
        with progress_display() as show:

            def on_progress(progress: Progress) -> None:
                nonlocal state
                if progress is not state:
                    state = progress
                    for note in progress.notes:
                        typer.echo(f"hessianlens: {note}.", err=True)
                if progress.elsewhere and not announced:
                    announced.append(progress.elsewhere)
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
