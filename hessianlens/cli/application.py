"""The application that the commands register with."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hessianlens.cli.exit_codes import BAD_INPUT, stop
from hessianlens.cli.group import CommandGroup
from hessianlens.cli.torchrun import check_started, refuse_several

app = typer.Typer(
    name="hessianlens",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens report[/cyan]    every figure in laptop size, every claim: a story (report/index.html), a lab book

[cyan]hessianlens reproduce fig3a --preset paper --figures figures[/cyan]

[cyan]hessianlens claims A12[/cyan]    one claim explained

[cyan]hessianlens inspect toy:layers=2[/cyan]    which block of a model is badly scaled

[cyan]hessianlens compare run/checkpoint-500 run/checkpoint-1000 --data text.txt[/cyan]    before and after

[cyan]hessianlens watch runs/checkpoint-* --data text.txt --out run.html[/cyan]    curvature along a training run

[cyan]hessianlens layer[/cyan]    a page about one attention layer, into layer/index.html

[cyan]hessianlens explore[/cyan]    the exact Hessian of a small layer, interactive, in the browser"""


def _version(asked: bool) -> None:
    if asked:
        from hessianlens import __version__

        typer.echo(f"hessianlens {__version__}")
        raise typer.Exit


def _check_directory() -> None:
    """Names of files mean something; numerical libraries end the process where they find no directory."""
    try:
        os.getcwd()
    except OSError as error:
        stop(f"the current directory cannot be found ({error.strerror}); change to one that exists.", BAD_INPUT)


@app.callback(epilog=EXAMPLES)
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """The curvature laboratory for Transformers: exact Hessians, every figure of the literature, every claim tested."""
    _check_directory()
    check_started()
    if context.invoked_subcommand not in ("inspect", "compare"):
        refuse_several(context.invoked_subcommand or "hessianlens")
