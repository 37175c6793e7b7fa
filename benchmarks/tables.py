"""Results as rich tables."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from benchmarks.results import OURS, PEER, Result, Timing
from benchmarks.scaling import GRADIENT, KINDS
from benchmarks.wording import duration, times
from hessianlens.sizes import readable


def _head(result: Result) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in result.setting.items())
    return f"[bold]{escape(result.title)}[/bold]\n[dim]{escape(sizes)}; {result.rounds} rounds[/dim]"


def _goal(result: Result, timing: Timing) -> str:
    if timing.role != PEER or result.target is None:
        return ""
    return "[green]met[/green]" if timing.ratio.median >= result.target else "[red]not met[/red]"


def comparison(result: Result) -> Table:
    """Competitors with time, ratio, target and memory."""
    table = Table(title=_head(result), title_justify="left", title_style="", box=SIMPLE_HEAD)
    table.add_column("competitor")
    for column in ("first call", "median", "on the wall", "ratio to ours", "quartiles", f"{result.target:g}x"):
        table.add_column(column, justify="right", no_wrap=True)
    if result.memory:
        table.add_column("peak memory", justify="right", no_wrap=True)
    for t in result.timings:
        name = f"[bold]{escape(t.name)}[/bold]" if t.role == OURS else escape(t.name)
        cells = [
            duration(t.first),
            duration(t.seconds.median),
            "" if t.wall is None else duration(t.wall),
            times(t.ratio.median),
            "" if t.role == OURS else f"{times(t.ratio.low)} to {times(t.ratio.high)}",
            _goal(result, t),
        ]
        if result.memory:
            cells.append(readable(result.memory[t.name].run) if t.name in result.memory else "")
        table.add_row(name, *cells)
    return table


def exponents(result: Result) -> Table:
    """Fitted exponents of every sweep."""
    table = Table(title=_head(result), title_justify="left", title_style="", box=SIMPLE_HEAD)
    table.add_column("sweep")
    table.add_column("cost")
    for column in ("time", "time / gradient", "operations", "gradients, first", "gradients, last"):
        table.add_column(column, justify="right")
    for name, sweep in result.details["sweeps"].items():
        for kind in (*KINDS, GRADIENT):
            slopes, relative = sweep["slopes"][kind], sweep["costs"][kind]["relative"]
            numbers = [f"{slopes[key]:.2f}" for key in ("seconds", "relative", "operations")]
            row = [*numbers, f"{relative[0]:.3g}", f"{relative[-1]:.3g}"]
            table.add_row(name if kind == KINDS[0] else "", kind, *row, end_section=kind == GRADIENT)
    return table


def rendered(result: Result) -> RenderableType:
    """The table of a result with its notes below."""
    table = comparison(result) if result.timings else exponents(result)
    notes = [Padding(Text(f"- {note}"), (0, 0, 0, 1)) for note in result.notes]
    return Group(table, *notes, Text(""))
