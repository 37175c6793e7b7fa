"""`hessianlens study`: train small models, or vary the design of attention, and say what follows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlab.cli import options
from hessianlab.cli.options import Address, Backend, Jobs, Settings, StoreFile
from hessianlab.cli.running import (
    STORE,
    catalogue,
    draw,
    planned_progress,
    print_catalogue,
    print_failures,
    print_forecast,
    print_outcome,
    print_table,
    processes,
    run_with_progress,
)
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes, stop
from hessianlens.cli.options import AsJson
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from hessianlab.experiments.experiment import Experiment
    from hessianlab.results import Result
    from hessianlab.runner import Plan
    from hessianlab.studies.presentation.findings import StudyFindings

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens study --list[/cyan]    which studies there are, and how long they take

[cyan]hessianlens study scaling[/cyan]    hypothesis and budget, then the run, then what was found

[cyan]hessianlens study activations --set tasks=characters --set text=book.txt --figures figures[/cyan]

[cyan]hessianlens study design --vary activation=softmax,sigmoid,linear --vary norm=none,pre --vary heads=1,4[/cyan]

[cyan]hessianlens study optimisers --preset full --jobs 8 --dry-run[/cyan]"""


@app.command(name="study", epilog=_EXAMPLES)
def run_studies(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Studies, e.g. scaling activations.", autocompletion=options.complete_studies),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="quick (minutes) or full (hours).", autocompletion=options.complete_study_presets)
    ] = "quick",
    jobs: Jobs = None,
    store: StoreFile = STORE,
    settings: Settings = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUES", help="What a design study varies, e.g. norm=none,pre; as --set."),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CLASS",
            help="Your own attention as well (design study); its module is imported, so its code runs.",
        ),
    ] = None,
    backend: Backend = "local",
    address: Address = None,
    figures: Annotated[Path | None, typer.Option(help="Directory for figures as PNG, SVG and PDF.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the studies and run nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan, and run nothing.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Record the result for the claims that it decides.")] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Record it beside the recorded result, as a run with other seeds and settings."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run studies: what attention's design does to training.

    Each states its hypothesis and budget first, and reports paired differences with intervals.
    Every finished cell is saved immediately; the same command resumes an interrupted run.
    """
    with errors_as_exit_codes("nothing was measured."):
        from hessianlab.runner import check_workers, configure

        experiments = _chosen(names or [], listed)
        if listed:
            entries = catalogue(experiments, store)
            typer.echo(json.dumps(entries, indent=2)) if as_json else print_catalogue(entries, store)
            return
        own = [f"attention={attention}"] if attention is not None else []
        plans = configure(experiments, preset, [*(settings or []), *(vary or []), *own])
        check_workers(backend, 1 if jobs is None else jobs, address)
        if not as_json:
            _state(plans)
        if dry_run:
            print_forecast(planned_progress(plans, store, processes(jobs)))
            return
        results, failures, pictures, progress = _run(plans, store, jobs, backend, address, figures)
        if (record or again) and not failures:
            _record(results, again)
    if as_json:
        typer.echo(json.dumps([_in_json(result, pictures) for result in results], indent=2))
    else:
        _print_results(results)
        print_outcome(progress, [], pictures)
    if failures:
        print_failures(failures)
        stop(f"{number_of(len(failures), 'cell')} failed; all others are kept in {store}.", FINDING)


def _chosen(names: Sequence[str], listed: bool) -> list[Experiment[Any]]:
    """Studies by name, with or without study_ in front."""
    from hessianlab.experiments.registry import STUDIES, STUDY
    from hessianlens.errors import check_choice, expect

    known = [name.removeprefix(STUDY) for name in STUDIES]
    expect(bool(names) or listed, f"study: got no name, expected one or more of {', '.join(known)}; see --list.")
    short = [name.removeprefix(STUDY) for name in names]
    for name in short:
        check_choice("study", name, known)
    return [STUDIES[STUDY + name] for name in dict.fromkeys(short or known)]


def _run(
    plans: Sequence[Plan], store: Path, jobs: int | None, backend: str, address: str | None, figures: Path | None
) -> Any:
    from hessianlab.store import open_store
    from hessianlens.files import check_directory

    if figures is not None:
        check_directory(figures, "figures")
    with open_store(store) as opened:
        results, progress, failures = run_with_progress(plans, opened, processes(jobs), backend, address)
    pictures = {result.experiment: draw(result, figures) for result in results} if figures else {}
    return results, failures, pictures, progress


def _state(plans: Sequence[Plan]) -> None:
    """What each study expects and will spend, before it runs."""
    for plan in plans:
        typer.secho(f"{plan.experiment.title}", bold=True)
        typer.echo(plan.experiment.question)
        for line in plan.experiment.statement(plan.config):
            typer.echo(f"  {line}")
        typer.echo("")


def _print_results(results: Sequence[Result]) -> None:
    for result in results:
        typer.secho(result.experiment, bold=True)
        findings = _findings(result)
        lines = findings.table(result)
        if lines:
            print_table(list(lines[0]), [list(line.values()) for line in lines])
        for sentence in findings.sentences(result):
            typer.echo(f"- {sentence}")
        typer.echo("")


def _in_json(result: Result, pictures: dict[str, list[str]]) -> dict[str, Any]:
    findings = _findings(result)
    return {
        "study": result.experiment,
        "preset": result.preset,
        "config": dict(result.config),
        "findings": findings.sentences(result),
        "numbers": findings.in_record(result, {}),
        "table": findings.table(result) or None,
        "figures": pictures.get(result.experiment, []),
    }


def _record(results: Sequence[Result], again: bool) -> None:
    from hessianlab.claims.trained import read_record, write_record, write_replication

    for result in results:
        known = {} if again else read_record().get(result.experiment, {})
        numbers = _findings(result).in_record(result, known)
        path = (write_replication if again else write_record)(result.experiment, numbers)
        typer.echo(f"hessianlens: recorded in {path}.", err=True)


def _findings(result: Result) -> StudyFindings:
    """How a study is read: all of them the same way."""
    from hessianlab.presentations import findings_of
    from hessianlab.studies.presentation.findings import StudyFindings

    found = findings_of(result)
    assert isinstance(found, StudyFindings), result.experiment
    return found
