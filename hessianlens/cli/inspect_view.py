"""What `hessianlens inspect` prints."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hessianlens.inspect.inspection import Inspection
    from hessianlens.inspect.preparation import OpenedModel, PreparedModel
    from hessianlens.inspect.settings import Settings


def print_comparison(one: Inspection, other: Inspection, as_json: bool) -> None:
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


def print_forecast(opened: OpenedModel, as_json: bool, loading_seconds: float | None = None) -> None:
    """What a table would take.

    Args:
        opened: The model on its data, or a draft of it.
        as_json: Whether a machine reads it.
        loading_seconds: Of a draft, the time until it could be measured; its products are not timed but extrapolated.
    """
    from hessianlens.inspect.resources import TableCost, cost
    from hessianlens.inspect.settings import PROBES
    from hessianlens.sizes import number_of, readable, readable_time

    settings = opened.settings
    if loading_seconds is None:
        found = cost(opened.problem, opened.blocks, settings.parts, settings.probes or PROBES)
    else:
        found = TableCost(opened.needed, loading_seconds + opened.sampling_seconds)
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
    parameters = number_of(opened.loaded.parameters, "parameter", ",")
    typer.echo(f"{opened.loaded.described}: {parameters}; data: {opened.data.described}")
    typer.echo(
        f"{number_of(len(opened.blocks), 'block')}, {number_of(memory.products, 'HVP')}, "
        f"about {readable_time(seconds)}; "
        f"{readable(memory.peak_bytes)} at the peak ({readable(memory.process_bytes)} held already, "
        f"{readable(memory.graph_bytes)} of graph, sequences: {memory.sequences} at once, "
        f"{readable(memory.vector_bytes)} of vectors, {readable(memory.closed_form_bytes)} of closed forms), "
        f"{readable(memory.available)} free."
    )


ANNOUNCED_SECONDS, LONGEST_SECONDS = 60.0, 7 * 24 * 3600.0
"""Forecasts that are shown before the work, and that are refused: nobody waits for more than a week."""
ANNOUNCED_LOADING_SECONDS = 15.0
"""The same for the checks of a model while it is loaded, about which there is nothing else to show."""
_IN_TIME = "--budget 5m gives an answer in time"


def announce_cost(opened: OpenedModel) -> None:
    """Say beforehand what will take long where there is no budget, and refuse what would never end."""
    seconds = opened.sampling_seconds
    if opened.settings.seconds is not None or seconds < ANNOUNCED_SECONDS:
        return
    expect_an_end(opened)
    typer.echo(f"hessianlens: at most {_products(opened)}, less where there are closed forms; {_IN_TIME}.", err=True)


def expect_an_end(opened: OpenedModel) -> None:
    """Refuse what would take longer than a week, where there is no budget."""
    from hessianlens.errors import expect
    from hessianlens.inspect.settings import PROBES
    from hessianlens.sizes import readable_time

    settings = opened.settings
    expect(
        opened.sampling_seconds <= LONGEST_SECONDS or settings.method == "exact" or settings.seconds is not None,
        f"probes: got {settings.probes or PROBES}, which are {_products(opened)}; expected at most "
        f"{readable_time(LONGEST_SECONDS)} (a week); {_IN_TIME}, fewer --blocks or --probes, or a shorter --length, "
        "take less.",
    )


def _products(opened: OpenedModel) -> str:
    from hessianlens.sizes import number_of, readable_time

    return f"{number_of(opened.needed.products, 'HVP', ',')}, about {readable_time(opened.sampling_seconds)}"


def announce_loading(prepared: PreparedModel) -> None:
    """Say what takes long before anything is measured; refuse what would never end, or not within its budget."""
    from hessianlens.errors import expect
    from hessianlens.sizes import readable_time

    settings, seconds = prepared.settings, prepared.loading_seconds
    if seconds < ANNOUNCED_LOADING_SECONDS:
        return
    price = f"{prepared.passes}, about {readable_time(seconds)}"
    remedy = "a shorter --length or fewer --sequences take less"
    expect(
        settings.seconds is None or seconds <= settings.seconds,
        f"budget: got {settings.budget}, expected more than the checks before the first number take: {price}; "
        f"{remedy}.",
    )
    if prepared.draft is not None:
        expect_an_end(prepared.draft)
    typer.echo(f"hessianlens: checks before the first number: {price}; {remedy}.", err=True)


def _asked(settings: Settings) -> str:
    if settings.seconds is None:
        return f"{settings.most_probes:.0f} per block"
    limit = "" if settings.probes is None else f", at most {settings.probes} per block"
    return f"as many as {settings.budget} allow{limit}"


def print_table(measurement: Inspection) -> None:
    """The rows, what they say, and what else was asked for."""
    from rich.console import Console
    from rich.markup import escape

    from hessianlens.sizes import number_of

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    opened, table = measurement.opened, measurement.table
    settings = opened.settings
    heading = [
        ("Model", f"{opened.loaded.described}: {number_of(opened.loaded.parameters, 'parameter', ',')}"),
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


def _print_rows(measurement: Inspection, console: Console) -> None:
    """A number is never cut short: intervals go below the norms where the terminal is narrow, then lines are longer.

    A file is as wide as it has to be.
    """
    roomy = console.options.update(width=1000)
    table = _rich_table(measurement)
    if sys.stdout.isatty() and console.measure(table, options=roomy).maximum > console.width:
        table = _rich_table(measurement, narrow=True)
    console.width = max(console.width, console.measure(table, options=roomy).maximum)
    console.print(table)


def _rich_table(measurement: Inspection, narrow: bool = False) -> Any:
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
