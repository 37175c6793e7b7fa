"""`hessianlens inspect`: one model in, one curvature table out."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.endings import BAD_INPUT, INTERRUPTED, clear_endings, stop
from hessianlens.cli.options import AsJson
from hessianlens.cli.status_line import waiting
from hessianlens.cli.torchrun import first_prints, is_first, joined, own_device, together

if TYPE_CHECKING:
    from rich.console import Console

    from hessianlens.inspect.inspection import Measurement
    from hessianlens.inspect.opened import Opened
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

[cyan]hessianlens inspect run/checkpoint-500 run/checkpoint-1000 --compare --data text.txt[/cyan]    what has changed

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
    data: Annotated[
        Path | None, typer.Option(help=".pt, .npy, .jsonl or .txt; without it the data is random, and said to be.")
    ] = None,
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
    dtype: Annotated[str, typer.Option(help="float32 or float64.", autocompletion=completion.dtypes)] = "float64",
    device: Annotated[str, typer.Option(help="Where to compute.")] = "cpu",
    max_memory: Annotated[
        str | None, typer.Option(help="Such as 2GB: batches are cut so that the process stays within it.")
    ] = None,
    head: Annotated[
        str,
        typer.Option(
            help="causal-lm, masked-lm, seq2seq-lm, sequence-classification, image-classification, encoder.",
            autocompletion=completion.heads,
        ),
    ] = "auto",
    sequences: Annotated[int | None, typer.Option(help="Sequences to take from the data, or to draw.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence, at most.")] = None,
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
        typer.Option("--compare", help="Both models side by side: differences with intervals, from the same probes."),
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
        from hessianlens.inspect.settings import Settings
        from hessianlens.inspect.writable import check_writable
        from hessianlens.problems.selection import check_pattern

        with together(group):
            chosen = tuple(part.strip() for part in parts.split(",") if part.strip())
            settings = Settings(
                model=model,
                data=data,
                blocks=tuple(blocks or ()),
                per_head=per_head,
                parts=chosen,
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
            from hessianlens.inspect.groups import write_groups
            from hessianlens.inspect.inspection import Measurement, write_csv
            from hessianlens.inspect.opened import open_model
            from hessianlens.network.watch import BarWatch, Deadline, product_bar
        with product_bar() as bar:
            bar.add_task("Loading the model", total=None, made="")
            opened = open_model(settings, group)
        if forecast:
            _print_forecast(opened, as_json)
            return
        # The budget is for the whole command, loading included.
        measurement = Measurement(
            opened,
            pairs,
            tuple(spectrum or ()),
            Deadline(settings.seconds, started),
            with_page=html is not None,
            bits=quantise,
        )
        with product_bar() as bar:
            measurement.run(BarWatch(bar))
        if second is not None and not measurement.interrupted:
            with product_bar() as bar:
                bar.add_task("Loading the other model", total=None, made="")
                rival = Measurement(open_model(second, group))
            with product_bar() as bar:
                rival.run(BarWatch(bar))
            _print_comparison(measurement, rival, as_json)
        elif as_json:
            typer.echo(json.dumps(measurement.to_dict(), indent=2, allow_nan=False))
        else:
            _print_table(measurement)
        if csv is not None and is_first():
            write_csv(measurement.table, csv)
        if groups is not None and is_first():
            write_groups(measurement.measured.groups(base_lr), groups)
            typer.echo(f"Groups: {groups}", err=as_json)
        if html is not None and measurement.table.rows and not measurement.lost:
            more = [*(["--pairs"] if pairs else []), *(w for name in spectrum or () for w in ("--spectrum", name))]
            with product_bar() as bar:
                measurement.page(html, BarWatch(bar), settings.command(*more, "--html", str(html)))
            typer.echo(f"Page: {html}", err=as_json)
    if measurement.interrupted:
        done = f"{len(measurement.table.rows)} of {measurement.table.expected} blocks are measured"
        with first_prints():
            if measurement.lost:
                stop(f"{measurement.lost} {done}, and shown.", BAD_INPUT)
            stop(f"interrupted; {done}, and shown.", INTERRUPTED)


def _second(settings: Settings, other: str | None, compare: bool) -> Settings | None:
    """What is asked of the model that is compared with; None if there is none."""
    from dataclasses import replace

    from hessianlens.errors import expect

    expect(compare == (other is not None), "compare: expected two models with --compare, and one without it.")
    return None if other is None else replace(settings, model=other)


def _print_comparison(one: Measurement, other: Measurement, as_json: bool) -> None:
    """Two models side by side; all that both say of themselves is in the JSON."""
    found = one.measured.compare(other.measured)
    if as_json:
        both = {"before": one.to_dict(), "after": other.to_dict(), "changes": found.rows(), "summary": found.summary}
        typer.echo(json.dumps(both, indent=2))
        return
    for title, measurement in (("Before", one), ("After", other)):
        opened = measurement.opened
        typer.echo(f"{title:<7} {opened.loaded.described}; loss {opened.loss:.6g} on {opened.data.described}")
    typer.echo(str(found))


def _print_forecast(opened: Opened, as_json: bool) -> None:
    from hessianlens.inspect.blockwise import cost
    from hessianlens.inspect.settings import PROBES
    from hessianlens.sizes import readable, readable_time

    settings = opened.settings
    found = cost(opened.problem, opened.blocks, settings.parts, settings.probes or PROBES)
    memory = found.memory
    seconds = found.seconds if settings.seconds is None else min(found.seconds, settings.seconds)
    if as_json:
        figures = {
            "blocks": len(opened.blocks),
            "products": memory.products,
            "bytes": memory.total_bytes,
            "process_bytes": memory.process_bytes,
            "peak_bytes": memory.peak_bytes,
            "available": memory.available,
            "seconds": seconds,
        }
        typer.echo(json.dumps({**opened.to_dict(), "forecast": figures}, indent=2, allow_nan=False))
        return
    typer.echo(f"{opened.loaded.described}: {opened.loaded.parameters:,} parameters; data: {opened.data.described}")
    typer.echo(
        f"{len(opened.blocks)} blocks, {memory.products} products, about {readable_time(seconds)}; "
        f"{readable(memory.peak_bytes)} at the peak ({readable(memory.process_bytes)} held already, "
        f"{readable(memory.graph_bytes)} of graph, sequences: {memory.sequences} at once, "
        f"{readable(memory.vector_bytes)} of vectors, {readable(memory.closed_form_bytes)} of closed forms), "
        f"{readable(memory.available)} free."
    )


def _asked(settings: Settings) -> str:
    if settings.seconds is None:
        return f"{settings.most_probes:.0f} a block"
    limit = "" if settings.probes is None else f", at most {settings.probes} a block"
    return f"as many as {settings.budget} allow{limit}"


def _print_table(measurement: Measurement) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    opened, table = measurement.opened, measurement.table
    settings = opened.settings
    heading = [
        ("Model", f"{opened.loaded.described}: {opened.loaded.parameters:,} parameters"),
        ("Data", opened.data.described),
        ("Loss", f"{opened.loss:.6g} ({opened.problem.reduction})"),
        ("Probes", f"{_asked(settings)}, seed {settings.seed}, {settings.dtype} on {opened.problem.device}"),
        *(("Note", note) for note in opened.notes),
    ]
    for name, text in heading:
        console.print(f"[cyan]{name:<7}[/cyan] ", escape(text), sep="", soft_wrap=True)
    if table.rows:
        _print_rows(measurement, console)
        console.print(
            "-2% +4%: 95 % interval (x5: up to five times as much), none where exact; few: from fewer than 10 probes; "
            "scale: |H| / sqrt(parameters) over that of the median block.",
            style="dim",
            soft_wrap=True,
        )
        if opened.settings.seconds is not None or measurement.measured.left_out:
            console.print("[cyan]Measured:[/cyan]", escape(measurement.measured.summary), soft_wrap=True)
        console.print("[cyan]What to do:[/cyan]", escape(measurement.advice()), soft_wrap=True)
    for title, text in measurement.extras():
        console.print(f"\n[cyan]{escape(title)}[/cyan]")
        console.print(text, soft_wrap=True, markup=False)


_TWO_LINES = {"parameters": "para-\nmeters", "functional/outer": "func-\ntional/\nouter"}
"""Headings where the terminal is narrow: eighty columns hold a model's table."""


def _print_rows(measurement: Measurement, console: Console) -> None:
    """A number is never cut short: intervals go below the norms where the terminal is narrow, then lines are longer.

    A file is as wide as it has to be.
    """
    roomy = console.options.update(width=1000)
    table = _rich_table(measurement)
    if sys.stdout.isatty() and console.measure(table, options=roomy).maximum > console.width:
        table = _rich_table(measurement, narrow=True)
    console.width = max(console.width, console.measure(table, options=roomy).maximum)
    console.print(table)


def _rich_table(measurement: Measurement, narrow: bool = False) -> Any:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from hessianlens.inspect.inspection import cell

    headings = {"full": "|H|", "ggn": "|G|", "functional": "|H-G|"}
    parts, table = measurement.opened.settings.parts, measurement.table
    scales = table.scales
    made = Table(box=None if narrow else box.SIMPLE_HEAD, pad_edge=False)
    made.add_column("block", style="cyan", no_wrap=True)
    rounding = measurement.rounding
    more = [f"loss at\n{measurement.bits} bits"] if rounding else []
    for title in ("parameters", *(headings[part] for part in parts), "functional/outer", "scale", *more):
        made.add_column(_TWO_LINES.get(title, title) if narrow else title, justify="right", no_wrap=True)
    for row in table.rows:
        found = table.ratio(row)
        ratio = "" if found is None else f"{found:.2g}"
        scale = "flat" if row.name not in scales else f"{scales[row.name]:.2g}"
        norms = [cell(row.norms[part]) for part in parts]
        shown = [norm.replace(" -", "\n-").replace(" few", "\nfew") for norm in norms] if narrow else norms
        risen = [f"{rounding[row.name].rise:+.2g}" if row.name in rounding else ""] if rounding else []
        made.add_row(escape(row.name), f"{row.parameters:,}", *shown, ratio, scale, *risen)
    return made
