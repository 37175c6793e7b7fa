"""`hessianlens claims`: every claim of the documents, tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlab.cli import options
from hessianlab.cli.options import Address, Backend, Jobs, StoreFile
from hessianlab.cli.running import STORE, processes, run_with_progress
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import FINDING, errors_as_exit_codes
from hessianlens.cli.options import AsJson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hessianlab.claims.ledger import Entry, Ledger
    from hessianlab.runner import Plan

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens claims[/cyan]    test every claim, show the verdicts and their counts; run again to continue

[cyan]hessianlens claims A12 P25[/cyan]    explain two of them: checks, thresholds, condition or correction, example

[cyan]hessianlens claims --document C --verdict fails[/cyan]

[cyan]hessianlens claims --seed 700[/cyan]    whether a verdict depends on the seed

[cyan]hessianlens claims C23 --plot pictures[/cyan]    also draw it

[cyan]hessianlens claims --json > ledger.json[/cyan]"""


@app.command(name="claims", epilog=_EXAMPLES)
def judge_claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims to explain, such as A12 P25; none: all, as a table.", autocompletion=options.complete_claim_ids
        ),
    ] = None,
    document: Annotated[
        str | None,
        typer.Option(help="Only claims of this document: P, A, B, C or D.", autocompletion=options.complete_documents),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Only claims of this topic, e.g. 'softmax masking'.", autocompletion=options.complete_topics),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            help="Show only: holds, 'holds if', fails, misprint, open, ...", autocompletion=options.complete_verdicts
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Directory for a PNG of every claim that has curves.")] = None,
    as_json: AsJson = False,
    record: Annotated[bool, typer.Option("--record", help="Record these verdicts.")] = False,
    seed: Annotated[int, typer.Option(help="First seed; recorded verdicts are those of 0.")] = 0,
    jobs: Jobs = None,
    store: StoreFile = STORE,
    backend: Backend = "local",
    address: Address = None,
) -> None:
    """Test claims about attention, and compare the verdicts with the recorded ones.

    Every verdict is saved as it is found; the same command resumes an interrupted run.
    Exit code 1 if a verdict differs from the recorded one, or a check fails.
    """
    with errors_as_exit_codes("nothing was recorded."):
        from hessianlab.claims.ledger import selected_ids, with_verdict
        from hessianlab.runner import check_workers
        from hessianlens.errors import expect
        from hessianlens.files import check_directory

        chosen = selected_ids(ids or (), document, topic)
        with_verdict((), verdict)  # refuse a misspelt verdict before the work
        expect(0 <= seed < 2**31, f"seed: got {seed}, expected one from 0 to 2147483647.")
        expect(not (record and seed), f"--record: got the draws of --seed {seed}, expected those of 0; leave one out.")
        check_workers(backend, 1 if jobs is None else jobs, address)
        if plot is not None:
            check_directory(plot, "plot")
        ledger = _tested(_plan(chosen, seed), chosen, store, jobs, backend, address)
        entries = with_verdict(ledger, verdict)
        _print(entries, explain=bool(ids), as_json=as_json)
        if plot is not None:
            _draw(entries, plot)
        troubles = _troubles(ledger)
        if record and not troubles:
            _record(ledger)
        troubles += [] if record else _changes(ledger)
    for line in troubles:
        typer.echo(f"hessianlens: {line}", err=True)
    if troubles:
        raise typer.Exit(FINDING)


def _plan(ids: Sequence[str], seed: int) -> Plan:
    """The whole ledger is one run, whoever asks for it; a selection is another."""
    from hessianlab.claims.catalogue import claim_topics
    from hessianlab.claims.stored import EXPERIMENT, ClaimsConfig
    from hessianlab.runner import Plan

    if ids == list(claim_topics()) and not seed:
        return Plan(EXPERIMENT, ClaimsConfig(), "quick")
    return Plan(EXPERIMENT, ClaimsConfig(tuple(ids), seed))


def _tested(plan: Plan, ids: Sequence[str], path: Path, jobs: int | None, backend: str, address: str | None) -> Ledger:
    """Entries of the chosen claims: from the store, tested now, or broken."""
    from hessianlab.claims.catalogue import find
    from hessianlab.claims.stored import ledger_of
    from hessianlab.store import open_store

    claims = find(ids)
    if not plan.cells:  # none of them has a test
        return ledger_of(claims, ())
    with open_store(path) as store:
        count = min(processes(jobs), len(plan.cells))
        _, _, failures = run_with_progress([plan], store, count, backend, address)
        kept = [store.get(plan.experiment.name, parameters, plan.code) for parameters in plan.cells]
    errors = {str(failure.parameters["claim"]): failure.message for failure in failures}
    return ledger_of(claims, [cell for cell in kept if cell is not None], errors)


def _print(entries: Sequence[Entry], *, explain: bool, as_json: bool) -> None:
    from rich.console import Console

    from hessianlab.cli.claims_view import show

    if as_json:
        typer.echo(json.dumps([entry.to_dict() for entry in entries], indent=2, allow_nan=False))
    else:
        show(Console(highlight=False), entries, explain)


def _draw(entries: Sequence[Entry], directory: Path) -> None:
    from hessianlab.plots.charts import write_claim_figure
    from hessianlens.errors import InputError

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--plot: {directory} cannot be a directory ({error.strerror}); name another.") from error
    written = []
    for entry in entries:
        if entry.finding is not None and entry.finding.curves is not None:
            path = directory / f"{entry.claim.id}.png"
            written.append(write_claim_figure(entry.finding.curves, f"{entry.claim.id}: {entry.verdict}", path))
    text = ", ".join(map(str, written)) or "none; no claim shown has curves"
    typer.echo(f"Pictures: {text}", err=True)


def _record(ledger: Ledger) -> None:
    from hessianlab.claims.catalogue import claim_topics
    from hessianlab.claims.ledger import RECORDED_VERDICTS, write_verdicts

    write_verdicts(ledger, list(claim_topics()), RECORDED_VERDICTS)
    typer.echo(f"Recorded {len(ledger)} verdicts in {RECORDED_VERDICTS}", err=True)


def _troubles(ledger: Ledger) -> list[str]:
    broken = [f"{entry.claim.id}: its test raised {entry.error}" for entry in ledger.errors]
    return broken + [
        f"{entry.claim.id}: the correction or condition did not pass its own checks" for entry in ledger.unsupported
    ]


def _changes(ledger: Ledger) -> list[str]:
    """One line a changed verdict, and one for all that were never recorded."""
    from hessianlab.claims.ledger import RECORDED_VERDICTS, changed_verdicts, read_verdicts

    found = changed_verdicts(ledger, read_verdicts(RECORDED_VERDICTS))
    changed = [str(difference) for difference in found if difference.recorded is not None]
    new = [difference.id for difference in found if difference.recorded is None]
    if new:
        listed = ", ".join(new[:10]) + (", ..." if len(new) > 10 else "")
        changed.append(f"{len(new)} verdicts are not recorded yet ({listed}); look at them, then use --record.")
    return changed
