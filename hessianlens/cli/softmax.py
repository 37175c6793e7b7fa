"""`hessianlens softmax`: a row of scores by hand."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Annotated

import typer

from hessianlens.cli import completion
from hessianlens.cli.application import app
from hessianlens.cli.exit_codes import errors_as_exit_codes
from hessianlens.cli.options import AsJson
from hessianlens.cli.status_line import waiting

_EXAMPLES = """[bold]Examples[/bold]

[cyan]hessianlens softmax 2.8 1.2 0.5 3.1[/cyan]

[cyan]hessianlens softmax 2.8 1.2 0.5 3.1 --temperature 0.5 --mask 2,3 --activation softmax,row_sum[/cyan]

[cyan]hessianlens softmax -3 0 90 --activation softmax,sigmoid[/cyan]    beyond the exponentials of float32"""


@app.command(name="softmax", epilog=_EXAMPLES, context_settings={"ignore_unknown_options": True})
def show_softmax(
    scores: Annotated[list[str], typer.Argument(help="One row of scores.", metavar="SCORE...")],
    temperature: Annotated[float, typer.Option(help="Divides the scores.")] = 1.0,
    mask: Annotated[str, typer.Option(help="Masked positions, counted from 0, e.g. 2,3.", metavar="POSITIONS")] = "",
    activation: Annotated[
        str,
        typer.Option(
            help="softmax, sigmoid, row_sum, ...; several separated by commas.", autocompletion=completion.activations
        ),
    ] = "softmax",
    as_json: AsJson = False,
) -> None:
    """Show the attention weights of one row of scores.

    Weights, entropy and gradient of several activations side by side, and where each number format overflows.
    """
    with errors_as_exit_codes("nothing was computed."):
        row, hidden, names = _numbers(scores), _positions(mask, len(scores)), _names(activation)
        from hessianlens.errors import check_number

        check_number("temperature", temperature, 0.0, strictly=True)
        with waiting("Loading the libraries"):
            from hessianlens.attention.row_profile import log_weights, precisions, row_facts
        facts = [row_facts(row, name, hidden, temperature) for name in names]
        formats = precisions(row, hidden, temperature)
        if not as_json:
            from hessianlens.cli.softmax_view import print_row

            print_row(row, hidden, temperature, facts, formats)
            return
        logs = [None if math.isinf(value) else value for value in log_weights(row, hidden, temperature)]
        answer = {
            "scores": row,
            "temperature": temperature,
            "hidden": hidden,
            "activations": [dataclasses.asdict(one) for one in facts],
            "log_softmax": logs,
            "precisions": [dataclasses.asdict(one) for one in formats],
        }
        typer.echo(json.dumps(answer, indent=2, allow_nan=False))


def _numbers(texts: list[str]) -> list[float]:
    from hessianlens.errors import InputError

    found = []
    for text in texts:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise InputError(f"scores: got {text!r}, expected a finite number; hide a position with --mask.")
        found.append(number)
    return found


def _positions(text: str, length: int) -> list[int]:
    from hessianlens.errors import InputError

    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if not part.isdigit() or int(part) >= length:
            raise InputError(f"mask: got {part!r}, expected positions from 0 to {length - 1}, e.g. 0,1.")
        found.append(int(part))
    return sorted(set(found))


def _names(text: str) -> list[str]:
    from hessianlens.errors import check_choice, expect
    from hessianlens.notation import ACTIVATION_NAMES

    names = [part.strip() for part in text.split(",") if part.strip()]
    expect(bool(names), "activation: got no name, expected one or more, e.g. softmax,row_sum.")
    for name in names:
        check_choice("activation", name, ACTIVATION_NAMES)
    return list(dict.fromkeys(names))
