"""The reference of the command line, from the program itself: a page with one section per command."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import typer
import typer.main


def write(folder: Path) -> None:
    """Write `commands.md`."""
    os.environ.setdefault("COLUMNS", "100")
    from hessianlens.cli import app

    program: Any = typer.main.get_command(app)
    lines = [
        "# Command line",
        "",
        "Generated from the program. `hessianlens COMMAND --help` prints the same; every command takes `--help`.",
        "",
        "Exit codes: 0 done; 1 a finding (a check failed, a verdict changed); 2 bad input; 74 standard output cannot be",
        "written; 130 interrupted; 141 the reader of a pipe has gone.",
        "",
        *_options(program, typer.Context(program, info_name="hessianlens")),
    ]
    for name, command in program.commands.items():
        if not command.hidden:
            lines += _command(f"hessianlens {name}", command)
    (folder / "commands.md").write_text("\n".join(lines), encoding="utf-8")


def _command(name: str, command: Any) -> list[str]:
    context = typer.Context(command, info_name=name)
    usage = f"{name} {' '.join(command.collect_usage_pieces(context))}"
    lines = [f"## {name}", "", _text(command.help or ""), "", "```text", usage, "```", ""]
    return [*lines, *_options(command, context)]


def _options(command: Any, context: Any) -> list[str]:
    rows = [_row(given, context) for given in command.params if not getattr(given, "hidden", False)]
    return ["| option | default | what it does |", "| --- | --- | --- |", *rows, ""] if rows else []


def _row(given: Any, context: Any) -> str:
    names = (
        given.make_metavar(context)
        if given.param_type_name == "argument"
        else ", ".join([*given.opts, *given.secondary_opts])
    )
    if given.param_type_name == "option" and not given.is_flag:
        names += f" {given.make_metavar(context)}"
    value = given.get_default(context, call=False)
    unset = value is None or callable(value) or value in ((), [], False, "") or "Sentinel" in type(value).__name__
    shown = "" if unset else f"`{getattr(value, 'value', value)}`"
    about = _text(getattr(given, "help", None) or "").replace("\n", " ").replace("|", "\\|")
    return f"| `{names.replace('|', '/')}` | {shown} | {about} |"


def _text(words: str) -> str:
    """Help as Markdown: without rich's markup, and with angle brackets and dollars as themselves."""
    plain = re.sub(r"\[/?(?:bold|dim|italic|cyan|green|yellow|red)\]", "", words).replace("\\[", "[")
    return re.sub(r"(?<!`)([<$*_])(?!`)", r"\\\1", plain)
