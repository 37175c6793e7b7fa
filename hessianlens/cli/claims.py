"""`hessianlens claims`: every claim of the documents, tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.endings import FINDING, clear_endings
from hessianlens.cli.options import AsJson, Jobs
from hessianlens.cli.running import processes
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hessianlens.lab.claims.definition import Claim
    from hessianlens.lab.claims.entry import Entry
    from hessianlens.lab.claims.ledger import Ledger

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens claims[/cyan]    test every claim, show the verdicts and their counts

[cyan]hessianlens claims A12 P25[/cyan]    explain two of them: checks, thresholds, condition or correction, example

[cyan]hessianlens claims --document C --verdict fails[/cyan]

[cyan]hessianlens claims C23 --plot pictures[/cyan]    also draw it

[cyan]hessianlens claims --json > ledger.json[/cyan]"""


@app.command(name="claims", epilog=_EXAMPLES)
def judge_claims(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Claims to explain, such as A12 P25; none: all, as a table.", autocompletion=completion.claim_ids
        ),
    ] = None,
    document: Annotated[
        str | None,
        typer.Option(help="Only claims of this document: P, A, B or C.", autocompletion=completion.documents),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option(help="Only claims of this topic, e.g. 'softmax masking'.", autocompletion=completion.topics),
    ] = None,
    verdict: Annotated[
        str | None,
        typer.Option(
            help="Show only: holds, 'holds if', fails, 'needs training', ...", autocompletion=completion.verdicts
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Directory for a PNG of every claim that has curves.")] = None,
    as_json: AsJson = False,
    record: Annotated[bool, typer.Option("--record", help="Write these verdicts down as the recorded ones.")] = False,
    jobs: Jobs = None,
) -> None:
    """Test what the documents say and compare the verdicts with the recorded ones.

    Exit code 1 if a verdict is not the recorded one, or a test or its correction did not pass.
    """
    with clear_endings("nothing was recorded."):
        from hessianlens.errors import expect
        from hessianlens.lab.claims.selection import select, selected_ids, with_verdict
        from hessianlens.lab.pages import check_directory

        chosen = selected_ids(ids or (), document, topic)
        with_verdict((), verdict)  # refuse a misspelt verdict before the work
        expect(jobs is None or jobs >= 1, f"jobs: got {jobs}, expected at least 1 process.")
        if plot is not None:
            check_directory(plot, "plot")
        with waiting("Loading the claims"):
            loaded = select(chosen)
        ledger = _run(loaded, jobs)
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


def _run(chosen: Sequence[Claim], jobs: int | None) -> Ledger:
    """Every test under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hessianlens.lab.claims.ledger import run

    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Testing claims", total=len(chosen))

        def on_entry(entry: Entry) -> None:
            progress.update(task, advance=1, description=f"Tested {entry.claim.id}")

        return run(chosen, processes(jobs), on_entry)


def _print(entries: Sequence[Entry], *, explain: bool, as_json: bool) -> None:
    from rich.console import Console

    from hessianlens.cli.claims_view import show

    if as_json:
        typer.echo(json.dumps([entry.to_dict() for entry in entries], indent=2, allow_nan=False))
    else:
        show(Console(highlight=False), entries, explain)


def _draw(entries: Sequence[Entry], directory: Path) -> None:
    from hessianlens.errors import InputError
    from hessianlens.lab.plots.claim import write_claim_figure

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--plot: {directory} cannot be a directory ({error.strerror}); name another.") from error
    written = []
    for entry in entries:
        if entry.finding is not None and entry.finding.curves is not None:
            path = directory / f"{entry.claim.id}.png"
            written.append(write_claim_figure(entry.finding.curves, f"{entry.claim.id}: {entry.verdict}", path))
    told = ", ".join(map(str, written)) or "none; no claim shown has curves"
    typer.echo(f"Pictures: {told}", err=True)


def _record(ledger: Ledger) -> None:
    from hessianlens.lab.claims import record
    from hessianlens.lab.claims.registry import all_claims

    record.write(ledger, [claim.id for claim in all_claims()], record.RECORD)
    typer.echo(f"Recorded {len(ledger)} verdicts in {record.RECORD}", err=True)


def _troubles(ledger: Ledger) -> list[str]:
    broken = [f"{entry.claim.id}: its test raised {entry.error}" for entry in ledger.errors]
    return broken + [
        f"{entry.claim.id}: the correction or condition did not pass its own checks" for entry in ledger.unsupported
    ]


def _changes(ledger: Ledger) -> list[str]:
    """One line a changed verdict, and one for all that were never recorded."""
    from hessianlens.lab.claims import record

    found = record.differences(ledger, record.read(record.RECORD))
    changed = [str(difference) for difference in found if difference.recorded is not None]
    new = [difference.id for difference in found if difference.recorded is None]
    if new:
        listed = ", ".join(new[:10]) + (", ..." if len(new) > 10 else "")
        changed.append(f"{len(new)} verdicts are not recorded yet ({listed}); look at them, then use --record.")
    return changed
