"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hessianlens.cli import completion

PageFolder = Annotated[Path, typer.Option(help="Directory for index.html; made if it does not exist.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON on standard output.")]

# What a model is measured on, and how.

DataFile = Annotated[
    Path | None, typer.Option(help=".pt, .npy, .jsonl or .txt; without it the data is random, and said to be.")
]

Dtype = Annotated[str, typer.Option(help="float32 or float64.", autocompletion=completion.dtypes)]

Device = Annotated[str, typer.Option(help="Where to compute.")]

MaxMemory = Annotated[
    str | None, typer.Option(help="Such as 2GB: batches are cut so that the process stays within it.")
]

Head = Annotated[
    str,
    typer.Option(
        help="causal-lm, masked-lm, seq2seq-lm, sequence-classification, image-classification, encoder.",
        autocompletion=completion.heads,
    ),
]

Sequences = Annotated[int | None, typer.Option(help="Sequences to take from the data, or to draw.")]

Length = Annotated[int | None, typer.Option(help="Tokens of a sequence, at most.")]


def listed(text: str) -> list[str]:
    """Words with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]
