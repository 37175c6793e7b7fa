"""`hessianlens watch`: curvature along the saved checkpoints of a run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import errors_as_exit_codes
from hessianlens.cli.options import (
    AsJson,
    DataFile,
    Device,
    Dtype,
    Head,
    Length,
    MaxMemory,
    RenamedOptions,
    Sequences,
    output_files,
    split_words,
)
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlens.monitor.checkpoints import CheckpointRun

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens watch runs/checkpoint-* --data text.txt --out run.html[/cyan]

[cyan]hessianlens watch runs/checkpoint-* --data batch.pt --blocks "layer*.attn.q" --out run.jsonl[/cyan]

[cyan]hessianlens watch runs/checkpoint-* --quantities top,entropy --out run.csv --json[/cyan]"""

_COLUMNS = {
    "probe_loss": "loss",
    "top": "top eigenvalue",
    "sharpness": "sharpness",
    "edge": "edge",
    "trace": "trace",
    "norm": "|H|",
    "negative_mass": "negative curvature",
    "gradient": "gradient",
    "weight": "weights",
}


@app.command(name="watch", epilog=_EXAMPLES, cls=RenamedOptions)
def watch_checkpoints(
    checkpoints: Annotated[list[str], typer.Argument(help="Folders of saved models, such as runs/checkpoint-500.")],
    data: DataFile = None,
    blocks: Annotated[
        list[str] | None,
        typer.Option(help="Blocks to watch beside the whole model: name, glob or re: expression; may be repeated."),
    ] = None,
    quantities: Annotated[
        str, typer.Option(help="Quantities to measure, separated by commas.")
    ] = "top,trace,norm,negative,gradient,weight,entropy,edge",
    out: Annotated[
        list[str] | None,
        typer.Option(
            help="Write FILE.html: a page with the timelines; FILE.csv: a table; FILE.jsonl: every record as it is "
            "made, from which a later run continues. May be repeated."
        ),
    ] = None,
    probes: Annotated[int, typer.Option(help="Probe vectors for trace, norm and negative share.")] = 4,
    steps: Annotated[int, typer.Option(help="Lanczos steps per probe vector.")] = 6,
    rtol: Annotated[float, typer.Option(help="Relative residual of the largest eigenvalue.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Seed of probe vectors and random data.")] = 0,
    lr: Annotated[
        float | None,
        typer.Option(
            help="Take the stability threshold of gradient descent, 2 / lr, instead of that of the saved optimiser."
        ),
    ] = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    head: Head = "auto",
    sequences: Sequences = None,
    length: Length = None,
    max_memory: MaxMemory = None,
    as_json: AsJson = False,
) -> None:
    """Measure the curvature of a model at every checkpoint of its training.

    One row per checkpoint: the largest eigenvalue, trace and norm of the Hessian,
    its negative part, and the sizes of gradient and weights.
    With --out FILE.jsonl it goes on where it stopped, even after kill -9.
    """
    with errors_as_exit_codes("what was measured is in the .jsonl file, if one was named."):
        from hessianlens.errors import check_number
        from hessianlens.inspect.settings import Settings
        from hessianlens.monitor.arguments import check_quantities, find_checkpoints, make_effort

        files = output_files(out or [], ("html", "csv", "jsonl"))
        found = find_checkpoints(checkpoints)
        settings = Settings(
            model=str(found[0].path),
            data=data,
            blocks=tuple(blocks or ()),
            seed=seed,
            dtype=dtype,
            device=device,
            max_memory=max_memory,
            head=head,
            sequences=sequences,
            length=length,
        )
        asked = check_quantities(split_words(quantities))
        if lr is not None:
            check_number("lr", lr, 0.0, strictly=True)
        effort = make_effort(probes, steps, rtol, seed=seed)
        with waiting("Loading the libraries"):
            from hessianlens.monitor.checkpoints import CheckpointRun
            from hessianlens.monitor.records import RecordFile
        store = RecordFile(files["jsonl"]) if "jsonl" in files else None
        run = CheckpointRun(found, settings, asked, effort, store, lr)
        _run(run)
        if as_json:
            records = [record.to_dict() for record in run.history]
            typer.echo(json.dumps({"records": records, "caveats": _caveats(run)}, indent=2, allow_nan=False))
        else:
            _print(run)
        if "csv" in files:
            run.history.to_csv(files["csv"])
        if "html" in files:
            run.history.page(
                files["html"], f"{found[0].path.parent.name or found[0].path.name}, checkpoint by checkpoint"
            )


def _run(run: CheckpointRun) -> None:
    """Every checkpoint under a bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<28}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("Starting", total=len(run.checkpoints))
        for checkpoint, record in run.run():
            bar.update(task, description=checkpoint.path.name, advance=0 if record is None else 1)


def _caveats(run: CheckpointRun) -> list[str]:
    return [] if run.first is None else list(run.first.caveats)


def _print(run: CheckpointRun) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    measured = run.history.names().get("model", [])
    shown = {name: title for name, title in _COLUMNS.items() if name in measured}
    attention = [owner for owner, quantities in run.history.names().items() if "entropy_share" in quantities]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("step", *shown.values(), *(["narrowest attention"] if attention else [])):
        table.add_column(title, justify="right")
    for record in run.history:
        cells = [_cell(name, record.numbers.get("model", {}).get(name)) for name in shown]
        if attention:
            shares = {o: record.numbers[o]["entropy_share"].value for o in attention if o in record.numbers}
            lowest = min(shares, key=lambda owner: shares[owner], default="")
            cells.append(f"{shares[lowest]:.0%} {lowest.removesuffix('.attn')}" if lowest else "")
        table.add_row(str(record.step), *cells)
    console.print(table)
    text = "attention entropy: over that of equal weights, in the layer where it is lowest." if attention else ""
    seen = "sharpness: the largest eigenvalue as the optimiser sees it; beyond the edge its steps grow."
    edge = seen if "edge" in measured else ""
    missing = dict.fromkeys(note for record in run.history for note in record.notes)
    drawn = _caveats(run)
    limit = f"From {' and '.join(drawn)}: give --data for numbers that mean something." if drawn else ""
    for line in filter(None, (text, edge, *missing, limit)):
        console.print(line, style="dim", soft_wrap=True)


def _cell(name: str, reading: Any) -> str:
    """A number; of the share of negative curvature the ends of its interval, in percent."""
    if reading is None:
        return ""
    if name == "negative_mass" and reading.low < reading.high:
        return f"{100 * reading.low:.2g} to {100 * reading.high:.2g} %"
    return f"{reading.value:.4g}"
