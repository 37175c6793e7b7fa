"""`hessianlens inspect`: one model in, one curvature table out."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.endings import BAD_INPUT, INTERRUPTED, clear_endings, stop
from hessianlens.cli.inspect_view import (
    ANNOUNCED_LOADING_SECONDS,
    announce_cost,
    announce_loading,
    print_comparison,
    print_forecast,
    print_table,
)
from hessianlens.cli.options import AsJson, DataFile, Device, Dtype, Head, Length, MaxMemory, Sequences, listed
from hessianlens.cli.status_line import waiting
from hessianlens.cli.torchrun import first_prints, is_first, joined, own_device, together

if TYPE_CHECKING:
    from hessianlens.inspect.preparation import OpenedModel, PreparedModel
    from hessianlens.inspect.settings import Settings

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens inspect toy:layers=2,d_model=64[/cyan]    a small Transformer on the addition task

[cyan]hessianlens inspect "config:gpt2?n_layer=2&n_embd=64&n_head=4" --blocks "layer*.attn.*" --per-head[/cyan]

[cyan]hessianlens inspect ./my-model --data text.txt --length 64 --max-memory 2GB --csv blocks.csv[/cyan]

[cyan]hessianlens inspect ./my-model --data text.txt --budget 5m --html page.html[/cyan]    a page to look at

[cyan]hessianlens inspect config:gpt2 --sequences 1 --length 64 --budget 5m[/cyan]    an answer in time

[cyan]hessianlens inspect ./my-model --data batch.pt --blocks "layer11.*" --method exact --resume norms.jsonl[/cyan]

[cyan]hessianlens inspect ./my-model --data batch.pt --blocks "layer11.attn.*" --method sketch --rtol 0.01[/cyan]

[cyan]torchrun --nproc-per-node 2 -m hessianlens inspect ./my-model --data text.txt[/cyan]    in two processes

[cyan]hessianlens inspect ./my-model --data batch.pt --forecast[/cyan]    what it would take, without doing it

[cyan]hessianlens inspect ./my-model --data text.txt --groups groups.json --base-lr 3e-4 --quantise 4[/cyan]

[cyan]hessianlens inspect run/checkpoint-500 run/checkpoint-1000 --compare --data text.txt --html change.html[/cyan]

[cyan]hessianlens inspect toy --blocks "layer0.attn.?" --pairs --spectrum layer0.attn.q --json[/cyan]"""


@app.command(name="inspect", epilog=_EXAMPLES)
def inspect_model(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder or hub name, config:TYPE?NAME=VALUE&..., toy:NAME=VALUE,...",
            autocompletion=completion.models,
        ),
    ],
    other: Annotated[
        str | None,
        typer.Argument(help="With --compare: another model, or another checkpoint.", autocompletion=completion.models),
    ] = None,
    data: DataFile = None,
    blocks: Annotated[list[str] | None, typer.Option(help="Name, glob or re: expression; may be repeated.")] = None,
    per_head: Annotated[bool, typer.Option("--per-head", help="Every head a block of its own.")] = False,
    parts: Annotated[
        str, typer.Option(help="Which matrices, with commas between them.", autocompletion=completion.parts)
    ] = "full,ggn,functional",
    probes: Annotated[
        int | None, typer.Option(help="Random vectors a block; with --budget the most of them.", show_default="20")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Such as 5m: a first pass over every block, then more where it is needed most.")
    ] = None,
    rtol: Annotated[
        float | None,
        typer.Option(
            help="Intervals within this share of their norms are narrow enough; with --budget 0.05.", show_default=False
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto: exactly where it is worth it; exact: whatever it takes; sketch: the last attention layer from "
            "random small matrices; probes: with random vectors.",
            autocompletion=completion.methods,
        ),
    ] = "auto",
    resume: Annotated[
        Path | None, typer.Option(help="Exact norms go to this file as they are found, and are taken from it again.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Draws probes, random data and random weights.")] = 0,
    dtype: Dtype = "float64",
    device: Device = "cpu",
    max_memory: MaxMemory = None,
    head: Head = "auto",
    sequences: Sequences = None,
    length: Length = None,
    forecast: Annotated[bool, typer.Option("--forecast", help="Only say what it would take.")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Also the norms of every pair of blocks.")] = False,
    spectrum: Annotated[
        list[str] | None, typer.Option(help="Also extremal eigenvalues and inertia of this block; may be repeated.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table to this file.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page to this file: the blocks that matter, spectra, heads, attention maps."),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="Before and after: differences with intervals, from the same probes; files are of the second model.",
        ),
    ] = False,
    groups: Annotated[
        Path | None, typer.Option(help="Write learning-rate groups for torch.optim to this file, as JSON.")
    ] = None,
    base_lr: Annotated[float, typer.Option(help="The learning rate of the median parameter, for --groups.")] = 1e-3,
    quantise: Annotated[
        int | None, typer.Option(help="Also what rounding each matrix to so many bits costs.", min=1, max=32)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the curvature of a model, block by block.

    A row a block: norms of the Hessian H, of the Gauss-Newton matrix G and
    of the rest, and the block's scale beside the others.
    Ctrl-C keeps what is done.
    """
    started = time.monotonic()
    place = own_device(device)
    with first_prints(), clear_endings("nothing had been measured yet."), joined(place) as group:
        from hessianlens.errors import check_number
        from hessianlens.files import check_writable
        from hessianlens.inspect.settings import Settings
        from hessianlens.problems.selection import check_pattern

        with together(group):
            settings = Settings(
                model=model,
                data=data,
                blocks=tuple(blocks or ()),
                per_head=per_head,
                parts=tuple(listed(parts)),
                probes=probes,
                budget=budget,
                rtol=rtol,
                seed=seed,
                dtype=dtype,
                device=place,
                max_memory=max_memory,
                head=head,
                sequences=sequences,
                length=length,
                method=method,
                resume=resume,
            )
            for pattern in spectrum or ():
                check_pattern(pattern)
            second = _second(settings, other, compare)
            check_number("base_lr", base_lr, 0.0, strictly=True)
            for option, file in (("csv", csv), ("html", html), ("groups", groups)):
                if file is not None:
                    check_writable(file, option)
        with waiting("Loading the libraries"):
            from hessianlens.cli.progress_lines import shown_progress
            from hessianlens.inspect.inspection import Inspection, write_csv
            from hessianlens.inspect.learning_rates import write_groups
            from hessianlens.inspect.preparation import prepare_model
            from hessianlens.network.watch import Deadline
        with shown_progress("Loading the model"):
            prepared = prepare_model(settings, group)
        if forecast and prepared.draft is not None and prepared.loading_seconds >= ANNOUNCED_LOADING_SECONDS:
            print_forecast(prepared.draft, as_json, prepared.loading_seconds)
            return
        opened = _opened(prepared)
        if forecast:
            print_forecast(opened, as_json)
            return
        announce_cost(opened)
        # The budget is for the whole command, loading included; where two models are compared, for each of both.
        asked = partial(
            Inspection, with_pairs=pairs, spectra=tuple(spectrum or ()), with_page=html is not None, bits=quantise
        )
        first = asked if second is None else Inspection
        before, measurement = None, first(opened, deadline=Deadline(settings.seconds, started))
        with shown_progress("Starting") as watch:
            measurement.run(watch)
        if second is not None and not measurement.interrupted:
            before = measurement
            with shown_progress("Loading the other model"):
                prepared = prepare_model(second, group)
            measurement = asked(_opened(prepared))
            with shown_progress("Starting") as watch:
                measurement.run(watch)
            print_comparison(before, measurement, as_json)
        elif as_json:
            typer.echo(json.dumps(measurement.to_dict(), indent=2, allow_nan=False))
        else:
            print_table(measurement)
        if csv is not None and is_first():
            write_csv(measurement.table, csv)
        if groups is not None and is_first():
            write_groups(measurement.measured.groups(base_lr), groups)
            typer.echo(f"Groups: {groups}", err=as_json)
        if html is not None and measurement.table.rows and not measurement.lost:
            more = [*(["--pairs"] if pairs else []), *(w for name in spectrum or () for w in ("--spectrum", name))]
            more = more if other is None else ["--compare", *more]
            command = settings.command(*more, "--html", str(html), other=other)
            with shown_progress("Looking closer") as watch:
                measurement.page(html, watch, command, before)
            typer.echo(f"Page: {html}", err=as_json)
    if measurement.interrupted:
        done = f"{len(measurement.table.rows)} of {measurement.table.expected} blocks are measured"
        with first_prints():
            if measurement.lost:
                stop(f"{measurement.lost} {done}, and shown.", BAD_INPUT)
            stop(f"interrupted; {done}, and shown.", INTERRUPTED)


def _opened(prepared: PreparedModel) -> OpenedModel:
    """The model run and checked; what takes long is announced."""
    from hessianlens.cli.progress_lines import shown_progress

    announce_loading(prepared)
    with shown_progress(f"Checking the model ({prepared.passes})"):
        return prepared.open()


def _second(settings: Settings, other: str | None, compare: bool) -> Settings | None:
    """What is asked of the model that is compared with; None if there is none."""
    from dataclasses import replace

    from hessianlens.errors import expect

    expect(compare == (other is not None), "compare: expected two models with --compare, and one without it.")
    return None if other is None else replace(settings, model=other)
