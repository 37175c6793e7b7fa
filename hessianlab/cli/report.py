"""`hessianlens report`: reproduce every figure, test every claim, and write the story and the lab book."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlab.cli.options import Experiments, Jobs, Preset, PublishedMeans, Settings, StoreFile
from hessianlab.cli.running import STORE, chosen_experiments, processes, published_means, run_with_progress
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes, stop
from hessianlens.cli.options import PageFolder
from hessianlens.cli.status_line import waiting
from hessianlens.sizes import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hessianlab.claims.ledger import Ledger
    from hessianlab.results import Result
    from hessianlab.runner import Plan
    from hessianlab.store import Store

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens report[/cyan]    everything in laptop size, into report/index.html and labbook.html

[cyan]hessianlens report --preset paper --jobs 8[/cyan]    the published sizes; run again to continue

[cyan]hessianlens report fig3a fig7 --set repeats=5 --no-claims[/cyan]

[cyan]hessianlens report --no-run --store results.sqlite[/cyan]    pages about what a store holds; measures nothing"""


@app.command(name="report", epilog=_EXAMPLES)
def write_report(
    names: Experiments = None,
    out: PageFolder = Path("report"),
    preset: Preset = "quick",
    jobs: Jobs = None,
    store: StoreFile = STORE,
    settings: Settings = None,
    claims: Annotated[bool, typer.Option(help="Also test the claims.")] = True,
    run: Annotated[bool, typer.Option(help="Measure missing cells; --no-run only reads the store.")] = True,
    reference: PublishedMeans = None,
) -> None:
    """Reproduce every figure, test every claim, and write two self-contained pages.

    index.html is a story of ten minutes with interactive scenes, labbook.html has everything.
    Every finished cell is saved immediately; the same command resumes an interrupted run.
    """
    with errors_as_exit_codes(f"what was measured is kept in {store}; run the same command again to continue."):
        chosen = chosen_experiments(names or [])
        from hessianlab.runner import check_workers, configure
        from hessianlab.store import open_store
        from hessianlens.files import check_directory

        plans = configure(chosen, preset, settings or [])
        published = published_means(reference)
        check_workers("local", 1 if jobs is None else jobs, None)
        check_directory(out)
        with open_store(store, readonly=not run) as opened:
            with waiting("Loading the libraries"):
                from hessianlab.pages import write_page
                from hessianlab.report import render_pages

                if claims:
                    plans = [*plans, *_claims_plan(preset)]
            results, failed = _measure(plans, opened, processes(jobs)) if run else (_stored(plans, opened), 0)
            results = [*results, *_stored_studies(opened)]
        ledger, experiments = _ledger(results)
        pages = render_pages(experiments, ledger, published, _command(names or [], preset, settings or []))
        written = [write_page(out, html, name) for name, html in pages.items()]
    _summarise(experiments, ledger, written)
    if failed:
        stop(f"{number_of(failed, 'cell')} failed; the pages say what is complete.", FINDING)


def _claims_plan(preset: str) -> list[Plan]:
    from hessianlab.claims.stored import EXPERIMENT
    from hessianlab.runner import Plan

    return [Plan(EXPERIMENT, EXPERIMENT.preset(preset), preset)]


def _measure(plans: Sequence[Plan], store: Store, jobs: int) -> tuple[Sequence[Result], int]:
    from hessianlab.cli.running import print_failures

    results, _, failures = run_with_progress(plans, store, jobs)
    if failures:
        print_failures(failures)
    return results, len(failures)


def _stored(plans: Sequence[Plan], store: Store) -> list[Result]:
    """The newest complete run of each experiment that the store has, of whatever size; of the ledger a whole one."""
    from hessianlab.claims.stored import EXPERIMENT, is_whole
    from hessianlab.store import list_runs, load_run
    from hessianlens.errors import expect

    complete = list_runs(store, complete=True)
    runs = {run.experiment: run for run in complete if run.experiment != EXPERIMENT.name or is_whole(run.config)}
    found = [load_run(store, runs[plan.experiment.name]) for plan in plans if plan.experiment.name in runs]
    expect(bool(found), f"store: {store.path} holds no complete run of these; run without --no-run first.")
    return found


def _stored_studies(store: Store) -> list[Result]:
    """Studies that the store has, of whatever size: they are shown on the page, and never run for it."""
    from hessianlab.experiments.registry import STUDIES
    from hessianlab.store import list_runs, load_run

    newest = {run.experiment: run for run in list_runs(store, complete=True) if run.experiment in STUDIES}
    return [load_run(store, newest[name]) for name in STUDIES if name in newest]


def _ledger(results: Sequence[Result]) -> tuple[Ledger | None, list[Result]]:
    """The claims apart from the figures."""
    from hessianlab.claims.stored import EXPERIMENT, stored_ledger

    ledgers = [stored_ledger(result) for result in results if result.experiment == EXPERIMENT.name]
    return next(iter(ledgers), None), [result for result in results if result.experiment != EXPERIMENT.name]


def _command(names: Sequence[str], preset: str, settings: Sequence[str]) -> str:
    words = ["hessianlens report", *names, f"--preset {preset}", *(f"--set {setting}" for setting in settings)]
    return " ".join(words)


def _summarise(results: Sequence[Result], ledger: Ledger | None, pages: Sequence[Path]) -> None:
    from hessianlab.cli.running import print_findings
    from hessianlab.presentations import findings_of
    from hessianlab.report.claims import ledger_summary
    from hessianlab.report.figures import short_name
    from hessianlab.wording import several

    sentences = {short_name(result.experiment): findings_of(result).sentences(result)[:1] for result in results}
    print_findings(sentences | ({"Claims": [ledger_summary(ledger)]} if ledger is not None else {}))
    typer.echo(f"\nPages: {several([str(page) for page in pages])}")
