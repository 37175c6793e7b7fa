"""`hessianlens inspect` and `hessianlens compare`: one curvature table of a model, or two of them side by side."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import BAD_INPUT, INTERRUPTED, errors_as_exit_codes, stop
from hessianlens.cli.inspect_view import (
    ANNOUNCED_LOADING_SECONDS,
    announce_cost,
    announce_loading,
    print_comparison,
    print_forecast,
    print_table,
)
from hessianlens.cli.options import (
    Also,
    AsJson,
    Blocks,
    Budget,
    DataFile,
    Device,
    Dtype,
    Head,
    Length,
    MaxMemory,
    Method,
    Out,
    Parts,
    Probes,
    RenamedOptions,
    Rtol,
    Seed,
    Sequences,
    output_files,
    split_words,
)
from hessianlens.cli.status_line import waiting
from hessianlens.cli.torchrun import first_prints, is_first, own_device, process_group, refuse_together

if TYPE_CHECKING:
    from hessianlens.inspect.inspection import Inspection
    from hessianlens.inspect.preparation import OpenedModel, PreparedModel
    from hessianlens.inspect.settings import Extras, Settings

_ALL_PARTS = "full,ggn,functional"
_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens inspect toy:layers=2,d_model=64[/cyan]    a small Transformer on the addition task

[cyan]hessianlens inspect "config:gpt2?n_layer=2&n_embd=64&n_head=4" --blocks "layer*.attn.*" --also heads[/cyan]

[cyan]hessianlens inspect ./my-model --data text.txt --budget 5m --out page.html --out blocks.csv[/cyan]

[cyan]hessianlens inspect config:gpt2 --sequences 1 --length 64 --budget 5m[/cyan]    an answer in time

[cyan]hessianlens inspect ./my-model --data batch.pt --blocks "layer11.*" --method exact --out norms.jsonl[/cyan]

[cyan]hessianlens inspect ./my-model --data batch.pt --blocks "layer11.attn.*" --method sketch --rtol 0.01[/cyan]

[cyan]torchrun --nproc-per-node 2 -m hessianlens inspect ./my-model --data text.txt[/cyan]    on two ranks

[cyan]hessianlens inspect ./my-model --data batch.pt --max-memory 2GB --dry-run[/cyan]    what it would take

[cyan]hessianlens inspect ./my-model --data text.txt --also groups=3e-4,quantise=4 --out groups:groups.json[/cyan]

[cyan]hessianlens inspect toy --blocks "layer0.attn.?" --also pairs,spectrum=layer0.attn.q --json[/cyan]"""
_COMPARE_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens compare run/checkpoint-500 run/checkpoint-1000 --data text.txt --out change.html[/cyan]"""

ModelName = Annotated[
    str,
    typer.Argument(
        help="A Hugging Face folder or hub name, config:TYPE?NAME=VALUE&..., toy:NAME=VALUE,...",
        autocompletion=completion.models,
    ),
]


@app.command(name="inspect", epilog=_EXAMPLES, cls=RenamedOptions)
def inspect_model(
    model: ModelName,
    data: DataFile = None,
    sequences: Sequences = None,
    length: Length = None,
    head: Head = "auto",
    blocks: Blocks = None,
    parts: Parts = _ALL_PARTS,
    also: Also = None,
    method: Method = "auto",
    probes: Probes = None,
    budget: Budget = None,
    rtol: Rtol = None,
    seed: Seed = 0,
    dtype: Dtype = "float64",
    device: Device = "cpu",
    max_memory: MaxMemory = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the forecast of time and memory, and run nothing.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure the curvature of a model, block by block.

    One row per block: norms of the Hessian H, of the Gauss-Newton matrix G
    and of their difference, and the block's scale relative to the others.
    Ctrl-C ends it and keeps what is done.
    """
    _measure(**locals())


@app.command(name="compare", epilog=_COMPARE_EXAMPLES, cls=RenamedOptions)
def compare_models(
    before: ModelName,
    after: ModelName,
    data: DataFile = None,
    sequences: Sequences = None,
    length: Length = None,
    head: Head = "auto",
    blocks: Blocks = None,
    parts: Parts = _ALL_PARTS,
    also: Also = None,
    method: Method = "auto",
    probes: Probes = None,
    budget: Budget = None,
    rtol: Rtol = None,
    seed: Seed = 0,
    dtype: Dtype = "float64",
    device: Device = "cpu",
    max_memory: MaxMemory = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the curvature of two models or checkpoints, block by block.

    Differences of norms with 95 % intervals, from the same probe vectors.
    CSV and JSON files describe the second model, pages the change. With --budget,
    each model has that time.
    """
    given = locals()
    _measure(model=given.pop("before"), other=given.pop("after"), **given)


def _measure(
    model: str,
    also: list[str] | None,
    out: list[str] | None,
    as_json: bool,
    dry_run: bool = False,
    other: str | None = None,
    **asked: Any,
) -> None:
    """Measure one model, or two and their differences; print, and write files."""
    started, place = time.monotonic(), own_device(asked["device"])
    with first_prints(), errors_as_exit_codes("nothing had been measured yet."), process_group(place) as group:
        from hessianlens.inspect.settings import Extras

        with refuse_together(group):
            extras = Extras.parse(also or [])
            files = output_files(out or [], ("html", "csv", "json", "jsonl", "groups"))
            settings, second = _settings(asked, (model, other), place, extras, files.get("jsonl"))
        with waiting("Loading the libraries"):
            from hessianlens.cli.progress_lines import shown_progress
            from hessianlens.inspect.inspection import Inspection
            from hessianlens.inspect.preparation import prepare_model
            from hessianlens.network.base.progress import Deadline
        with shown_progress("Loading the model"):
            prepared = prepare_model(settings, group)
        if dry_run:
            _print_dry_run(prepared, as_json)
            return
        opened = _opened(prepared)
        announce_cost(opened)
        inspection = partial(
            Inspection, with_pairs=extras.pairs, spectra=extras.spectra, bits=extras.bits, with_page="html" in files
        )
        first = inspection if second is None else Inspection
        # The budget is for the whole command, loading included; where two models are compared, for each of both.
        before, measurement = None, _run(first(opened, deadline=Deadline(settings.seconds, started)))
        if second is not None and not measurement.interrupted:
            with shown_progress("Loading the other model"):
                prepared = prepare_model(second, group)
            before, measurement = measurement, _run(inspection(_opened(prepared)))
        _print(before, measurement, as_json)
        _write_files(measurement, files, extras.base_lr, as_json)
        if "html" in files and measurement.table.rows and not measurement.lost:
            command = settings.command(*extras.words(), "--out", str(files["html"]), other=other)
            with shown_progress("Diagnostics") as watch:
                measurement.page(files["html"], watch, command, before)
            typer.echo(f"Page: {files['html']}", err=as_json)
    _stop_if_interrupted(measurement)


def _settings(
    asked: dict[str, Any], models: tuple[str, str | None], place: str, extras: Extras, resume: Path | None
) -> tuple[Settings, Settings | None]:
    """What is asked for of the one model, and of the other if there is one."""
    from dataclasses import replace

    from hessianlens.inspect.settings import Settings

    given = {
        **asked,
        "device": place,
        "blocks": tuple(asked["blocks"] or ()),
        "parts": tuple(split_words(asked["parts"])),
    }
    settings = Settings(model=models[0], per_head=extras.heads, resume=resume, **given)
    return settings, None if models[1] is None else replace(settings, model=models[1])


def _print_dry_run(prepared: PreparedModel, as_json: bool) -> None:
    """What it would take; from a draft, where even the checks before the first number take long."""
    if prepared.draft is not None and prepared.loading_seconds >= ANNOUNCED_LOADING_SECONDS:
        print_forecast(prepared.draft, as_json, prepared.loading_seconds)
    else:
        print_forecast(_opened(prepared), as_json)


def _run(measurement: Inspection) -> Inspection:
    from hessianlens.cli.progress_lines import shown_progress

    with shown_progress("Starting") as watch:
        measurement.run(watch)
    return measurement


def _print(before: Inspection | None, measurement: Inspection, as_json: bool) -> None:
    if before is not None:
        print_comparison(before, measurement, as_json)
    elif as_json:
        typer.echo(_json(measurement))
    else:
        print_table(measurement)


def _stop_if_interrupted(measurement: Inspection) -> None:
    """Say what is done, if not everything is."""
    if not measurement.interrupted:
        return
    done = f"{len(measurement.table.rows)} of {measurement.table.expected} blocks are measured"
    with first_prints():
        if measurement.lost:
            stop(f"{measurement.lost} {done}, and shown.", BAD_INPUT)
        stop(f"interrupted; {done}, and shown.", INTERRUPTED)


def _json(measurement: Inspection) -> str:
    return json.dumps(measurement.to_dict(), indent=2, allow_nan=False)


def _write_files(measurement: Inspection, files: dict[str, Path], base_lr: float, as_json: bool) -> None:
    """All files but the page, in the first of several ranks."""
    if not is_first():
        return
    from hessianlens.errors import InputError
    from hessianlens.files import write_whole
    from hessianlens.inspect.learning_rates import write_groups

    contents = {"csv": measurement.table.to_csv, "json": lambda: _json(measurement) + "\n"}
    for kind, content in contents.items():
        if kind in files:
            try:
                write_whole(files[kind], content())
            except OSError as error:
                text = f"out: cannot write '{files[kind]}' ({error.strerror}); expected a file that can be written."
                raise InputError(text) from error
    if "groups" in files:
        write_groups(measurement.measured.groups(base_lr), files["groups"])
        typer.echo(f"Groups: {files['groups']}", err=as_json)


def _opened(prepared: PreparedModel) -> OpenedModel:
    """The model run and checked; what takes long is announced."""
    from hessianlens.cli.progress_lines import shown_progress

    announce_loading(prepared)
    with shown_progress(f"Checking the model ({prepared.passes})"):
        return prepared.open()
