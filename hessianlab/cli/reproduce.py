"""`hessianlens reproduce`: run the published figures and tables, and keep what they measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlab.cli.options import Address, Backend, Experiments, Jobs, Preset, PublishedMeans, Settings, StoreFile
from hessianlab.cli.running import (
    STORE,
    catalogue,
    chosen_experiments,
    draw,
    planned_progress,
    print_catalogue,
    print_failures,
    print_findings,
    print_forecast,
    print_outcome,
    print_published,
    processes,
    published_means,
    run_with_progress,
)
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes, stop
from hessianlens.cli.options import AsJson
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment
    from hessianlab.growth.comparison import SeriesComparison
    from hessianlab.growth.reference import Reference
    from hessianlab.results import Result
    from hessianlab.runner import Failure, Plan, Progress
    from hessianlab.store import Store

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens reproduce --list[/cyan]    what there is, and how long it takes

[cyan]hessianlens reproduce[/cyan]    everything in laptop size; run again to continue after an interruption

[cyan]hessianlens reproduce fig3a fig6 --preset paper --jobs 8 --figures figures[/cyan]

[cyan]hessianlens reproduce fig7 --set layers=1,2 --set repeats=3 --dry-run[/cyan]

[cyan]hessianlens reproduce --preset paper --backend dask --address tcp://10.0.0.1:8786[/cyan]"""


@app.command(name="reproduce", epilog=_EXAMPLES)
def reproduce_figures(
    names: Experiments = None,
    preset: Preset = "quick",
    jobs: Jobs = None,
    store: StoreFile = STORE,
    settings: Settings = None,
    backend: Backend = "local",
    address: Address = None,
    figures: Annotated[Path | None, typer.Option(help="Directory for figures as PNG, SVG and PDF.")] = None,
    reference: PublishedMeans = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the experiments and run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured, and run nothing.")] = False,
    record: Annotated[
        bool, typer.Option("--record", help="Record how growth figures agree with the published means.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="First delete cells of other versions of the code.")] = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce published figures and tables.

    Every finished cell is saved immediately.
    The same command resumes an interrupted run.
    Cells of other versions of the code are never used.
    """
    with errors_as_exit_codes("nothing was measured."):
        experiments = chosen_experiments(names or [])
        from hessianlab.runner import check_workers, configure
        from hessianlab.store import open_store
        from hessianlens.files import check_directory

        if listed:
            _list(experiments, store, as_json)
            return
        plans = configure(experiments, preset, settings or [])
        published = published_means(reference)
        check_workers(backend, 1 if jobs is None else jobs, address)
        if dry_run:
            _forecast(plans, store, processes(jobs), as_json)
            return
        if figures is not None:
            check_directory(figures, "figures")
        with open_store(store) as opened:
            if prune:
                _prune(opened, plans)
            results, progress, failures = run_with_progress(plans, opened, processes(jobs), backend, address)
        pictures = {result.experiment: draw(result, figures, published) for result in results} if figures else {}
        exponents = _exponents(results)
        compared = _compared(results, published)
        if record and not failures:
            _record(results, compared)
    if as_json:
        outcome = _outcome(progress, results, failures, pictures, exponents, compared, store)
        typer.echo(json.dumps({**outcome, "reference": None if published is None else str(published.path)}, indent=2))
    else:
        print_outcome(progress, exponents, pictures)
        if published is not None:
            print_published(compared, published.path)
        _print_results(results)
    if failures:
        print_failures(failures)
        stop(f"{number_of(len(failures), 'cell')} failed; all others are kept in {store}.", FINDING)


def _record(results: Sequence[Result], compared: Mapping[str, Sequence[SeriesComparison]]) -> None:
    """Growth figures alone have published means."""
    from hessianlab.growth.agreements import agreement_of, write_agreement

    for result in results:
        if result.experiment in compared:
            path = write_agreement(agreement_of(result, compared[result.experiment]))
            typer.echo(f"hessianlens: {result.experiment} recorded in {path}.", err=True)


def _prune(store: Store, plans: Sequence[Plan]) -> None:
    from hessianlab.store import prune

    deleted = prune(store, {plan.experiment.name: plan.code for plan in plans})
    typer.echo(f"hessianlens: {deleted} cells of other code deleted.", err=True)


def _list(experiments: Sequence[Experiment[Any]], path: Path, as_json: bool) -> None:
    """Times come from what the store has seen, by whatever code."""
    entries = catalogue(experiments, path)
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
    else:
        print_catalogue(entries, path)


def _forecast(plans: Sequence[Plan], path: Path, jobs: int, as_json: bool) -> None:
    progress = planned_progress(plans, path, jobs)
    if as_json:
        typer.echo(json.dumps(_outcome(progress, [], [], {}, [], {}, path), indent=2))
    else:
        print_forecast(progress)


def _print_results(results: Sequence[Result]) -> None:
    """What was found, at the end, where it is read."""
    from hessianlab.presentations import findings_of

    findings = {result.experiment: findings_of(result).sentences(result) for result in results}
    if any(findings.values()):
        typer.echo("\nWhat was found")
        print_findings(findings)


def _exponents(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Fitted exponents of the experiments that have some."""
    from hessianlab.growth.exponents import exponent_table
    from hessianlab.presentations import growth_of

    return [dict(row) for row in exponent_table(result for result in results if growth_of(result))]


def _compared(results: Sequence[Result], reference: Reference | None) -> dict[str, list[SeriesComparison]]:
    """Growth figures against published means; an empty list where there are none at the same size."""
    from hessianlab.presentations import growth_of

    found = {result.experiment: (growth_of(result), result) for result in results}
    return {name: growth.compared(result, reference) for name, (growth, result) in found.items() if growth}


def _published(compared: Sequence[SeriesComparison] | None) -> dict[str, Any] | None:
    """How a figure agrees with published means, and each of its series; None if nothing could be compared."""
    from hessianlab.growth.comparison import agreement_in_numbers

    if not compared:
        return None
    return {**agreement_in_numbers(compared), "series": [series.in_numbers() for series in compared]}


def _outcome(
    progress: Progress,
    results: Sequence[Result],
    failures: Sequence[Failure],
    pictures: dict[str, list[str]],
    exponents: Sequence[dict[str, Any]],
    compared: Mapping[str, Sequence[SeriesComparison]],
    path: Path,
) -> dict[str, Any]:
    """Everything a machine may want to know about a run."""
    configs = {result.experiment: result.config for result in results}
    return {
        "store": str(path),
        "notes": progress.notes,
        "experiments": [
            {
                "experiment": tally.experiment,
                "preset": tally.preset,
                "cells": tally.planned,
                "new": tally.new,
                "from_store": tally.stored,
                "failed": tally.failed,
                "to_do": tally.to_do,
                "seconds": tally.seconds,
                "config": configs.get(tally.experiment),
                "figures": pictures.get(tally.experiment, []),
                "published": _published(compared.get(tally.experiment)),
            }
            for tally in progress.tallies
        ],
        "exponents": list(exponents),
        "failures": [
            {"experiment": failure.experiment, "parameters": dict(failure.parameters), "message": failure.message}
            for failure in failures
        ],
    }
