"""The command line: parse, call the laboratory, say what was found.

Everything heavy is imported inside the commands. Exit codes: 0 done, 1 a check of the report failed, 2 bad input,
130 interrupted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from hessianlens.lab.demonstration import DemonstrationConfig, LayerFacts

app = typer.Typer(
    name="hessianlens",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens report[/cyan]    the default layer, into report/index.html

[cyan]hessianlens report --activation sigmoid --causal --seed 3 --out sigmoid[/cyan]

[cyan]hessianlens report --length 9 --d-model 8 --d-k 4 --json > figures.json[/cyan]"""

_FAILED, _BAD_INPUT, _INTERRUPTED = 1, 2, 130


def _version(asked: bool) -> None:
    if asked:
        from hessianlens import __version__

        typer.echo(f"hessianlens {__version__}")
        raise typer.Exit


@app.callback(epilog=_EXAMPLES)
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The curvature laboratory for Transformers: exact Hessians of attention layers."""


@app.command(epilog=_EXAMPLES)
def report(
    out: Annotated[Path, typer.Option(help="Directory for index.html; made if it does not exist.")] = Path("report"),
    seed: Annotated[int, typer.Option(help="Draws the weights; the next number draws tokens and targets.")] = 0,
    length: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 17,
    d_model: Annotated[int, typer.Option(help="Width of a token and of the output.")] = 16,
    d_k: Annotated[int, typer.Option(help="Width of queries and keys.")] = 8,
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    activation: Annotated[str, typer.Option(help="softmax, linear, sigmoid, relu_normalised, ...")] = "softmax",
    causal: Annotated[bool, typer.Option(help="Let a token see only itself and the tokens before it.")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the scores.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON on standard output.")] = False,
) -> None:
    """Measure the Hessian of one attention layer and write a page about it.

    One self-contained file: the matrix, its blocks and spectra, how they grow, and how three witnesses agree.
    """
    with _clear_endings():
        from hessianlens.lab.demonstration import DemonstrationConfig, check_directory

        check_directory(out)
        config = DemonstrationConfig(seed, length, d_model, d_k, batch, activation, causal, temperature)
        facts, page = _measure_and_write(config, out)
        if as_json:
            typer.echo(json.dumps(facts.to_dict(), indent=2, allow_nan=False))
        else:
            _summarise(facts, page)
    if not facts.witnesses_agree:
        typer.echo("hessianlens: the three witnesses do not agree; see section 2 of the page.", err=True)
        raise typer.Exit(_FAILED)


@contextmanager
def _clear_endings() -> Iterator[None]:
    """Bad input and Ctrl-C end with one plain message and their exit code."""
    from hessianlens.errors import InputError

    try:
        yield
    except InputError as error:
        _stop(str(error), _BAD_INPUT)
    except KeyboardInterrupt:
        _stop("interrupted; the page is either complete or as it was before.", _INTERRUPTED)


def _stop(message: str, code: int) -> NoReturn:
    typer.echo(f"hessianlens: {message}", err=True)
    raise typer.Exit(code)


def _measure_and_write(config: DemonstrationConfig, out: Path) -> tuple[LayerFacts, Path]:
    """Every step under a progress bar on standard error."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from hessianlens.lab.demonstration import STEPS, measure_layer, render, write_page

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
    from rich.table import Table

    from hessianlens.lab.demonstration.findings import findings
    from hessianlens.lab.demonstration.page import HEADINGS

    table = Table.grid(padding=(0, 2))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, statement in findings(facts).items():
        table.add_row(HEADINGS[name][1], statement)
    console = Console()
    console.print(table)
    console.print(f"\nPage: {page}", soft_wrap=True, highlight=False)
