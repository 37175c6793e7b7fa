"""`hessianlens layer`: a page about one attention layer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.endings import FINDING, clear_endings
from hessianlens.cli.options import AsJson, PageFolder
from hessianlens.cli.status_line import waiting

if TYPE_CHECKING:
    from hessianlab.layer_page import LayerConfig, LayerFacts

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens layer[/cyan]    the default layer, into layer/index.html

[cyan]hessianlens layer --activation sigmoid --causal --seed 3 --out sigmoid[/cyan]

[cyan]hessianlens layer --length 9 --d-model 8 --d-k 4 --json > figures.json[/cyan]"""


@app.command(name="layer", epilog=_EXAMPLES)
def show_layer(
    out: PageFolder = Path("layer"),
    seed: Annotated[int, typer.Option(help="Draws the weights; the next number draws tokens and targets.")] = 0,
    length: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 17,
    d_model: Annotated[int, typer.Option(help="Width of a token and of the output.")] = 16,
    d_k: Annotated[int, typer.Option(help="Width of queries and keys.")] = 8,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    activation: Annotated[
        str,
        typer.Option(help="softmax, linear, sigmoid, relu_normalised, ...", autocompletion=completion.activations),
    ] = "softmax",
    causal: Annotated[bool, typer.Option(help="Let a token see only itself and the tokens before it.")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the scores.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Measure the Hessian of one attention layer and write a page about it.

    One self-contained file: the matrix, its blocks and spectra, how they grow, and how three witnesses agree.
    """
    with clear_endings("the page is either complete or as it was before."):
        from hessianlab.layer_page import LayerConfig
        from hessianlab.pages import check_directory

        check_directory(out)
        config = LayerConfig(seed, length, d_model, d_k, batch, activation, causal, temperature)
        facts, page = _measure_and_write(config, out)
        if as_json:
            typer.echo(json.dumps(facts.to_dict(), indent=2, allow_nan=False))
        else:
            _summarise(facts, page)
    if not facts.witnesses_agree:
        typer.echo("hessianlens: the three witnesses do not agree; see section 2 of the page.", err=True)
        raise typer.Exit(FINDING)


def _measure_and_write(config: LayerConfig, out: Path) -> tuple[LayerFacts, Path]:
    """Every step under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    with waiting("Loading the libraries"):
        from hessianlab.layer_page import STEPS, measure_layer, render
        from hessianlab.pages import write_page
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=not sys.stderr.isatty()) as progress:
        task = progress.add_task("Starting", total=len(STEPS) + 1)
        done = -1

        def on_step(title: str) -> None:
            nonlocal done
            done += 1
            progress.update(task, description=title, completed=done)

        facts = measure_layer(config, on_step)
        on_step("Figures and page")
        page = write_page(out, render(facts))
        progress.update(task, description="Done", completed=len(STEPS) + 1)
    return facts, page


def _summarise(facts: LayerFacts, page: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from hessianlab.layer_page.page import HEADINGS
    from hessianlab.layer_page.sentences import findings

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, statement in findings(facts).items():
        table.add_row(escape(HEADINGS[name][1]), escape(statement))
    console = Console()
    console.print(table)
    console.print(f"\nPage: {page}", soft_wrap=True, highlight=False, markup=False)
