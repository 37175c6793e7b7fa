"""Options that several commands have, files to write by their endings, and earlier spellings of options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from hessianlens.cli import completion
from hessianlens.cli.torchrun import is_first

PageFolder = Annotated[Path, typer.Option(help="Output directory; created if missing.")]

AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON on standard output.")]

# What a model is measured on, and how.

DataFile = Annotated[
    Path | None, typer.Option(help=".pt, .npy, .jsonl or .txt; default: random data, and the output says so.")
]

Dtype = Annotated[str, typer.Option(help="float32 or float64.", autocompletion=completion.dtypes)]

Device = Annotated[str, typer.Option(help="Device, such as cuda.")]

MaxMemory = Annotated[str | None, typer.Option(help="Memory limit, such as 2GB; batches are split to stay within it.")]

Head = Annotated[
    str,
    typer.Option(
        help="causal-lm, masked-lm, seq2seq-lm, sequence-classification, image-classification, encoder.",
        autocompletion=completion.heads,
    ),
]

Blocks = Annotated[list[str] | None, typer.Option(help="Name, glob or re: expression; may be repeated.")]

Parts = Annotated[str, typer.Option(help="Matrices to measure, separated by commas.", autocompletion=completion.parts)]

Method = Annotated[
    str,
    typer.Option(
        help="auto: exact where that is cheap; exact: always; sketch: the last attention layer from random "
        "small matrices; probes: sampled.",
        autocompletion=completion.methods,
    ),
]

Probes = Annotated[
    int | None, typer.Option(help="Probe vectors per block; with --budget, the maximum.", show_default="20")
]

Budget = Annotated[
    str | None, typer.Option(help="Time, such as 5m: one pass over every block, then more for the widest intervals.")
]

Rtol = Annotated[
    float | None,
    typer.Option(help="Target relative half-width of the intervals; 0.05 with --budget.", show_default=False),
]

Also = Annotated[
    list[str] | None,
    typer.Option(
        help="heads: every head a block of its own; pairs: norms of all pairs of blocks; spectrum=BLOCK: extremal "
        "eigenvalues and inertia; quantise=BITS: cost of rounding; groups=LR: base learning rate of --out groups:FILE. "
        "Separated by commas; may be repeated.",
        autocompletion=completion.extras,
    ),
]

Out = Annotated[
    list[str] | None,
    typer.Option(
        help="Write FILE.html: a page with spectra, heads and attention maps; FILE.csv: the table; FILE.json: "
        "everything; FILE.jsonl: exact norms, to resume from; groups:FILE: learning rates for torch.optim. May be "
        "repeated."
    ),
]

Seed = Annotated[int, typer.Option(help="Seed of probe vectors, random data and random weights.")]

Sequences = Annotated[int | None, typer.Option(help="Number of sequences, taken from the data or generated.")]

Length = Annotated[int | None, typer.Option(help="Maximum length of a sequence, in tokens.")]


def split_words(text: str) -> list[str]:
    """Words with commas between them."""
    return [word.strip() for word in text.split(",") if word.strip()]


def output_files(given: Sequence[str], kinds: Sequence[str]) -> dict[str, Path]:
    """Files to write by kind: that of their ending, or one named in front of them as in ``csv:FILE``.

    >>> output_files(["page.html", "csv:blocks.txt"], ("html", "csv"))
    {'html': PosixPath('page.html'), 'csv': PosixPath('blocks.txt')}
    """
    from hessianlens.errors import InputError, expect
    from hessianlens.files import check_writable

    found: dict[str, Path] = {}
    for text in given:
        kind, colon, name = text.partition(":")
        if not colon or kind not in kinds:
            kind, name = Path(text).suffix.removeprefix("."), text
        if kind not in kinds or not name:
            endings = ", ".join(f".{kind}" for kind in kinds if kind != "groups")
            more = ", or groups:FILE" if "groups" in kinds else ""
            raise InputError(f"out: got {text!r}; expected a file that ends in {endings}{more}.")
        expect(kind not in found, f"out: got two files of the kind {kind}; expected one.")
        found[kind] = check_writable(Path(name), "out")
    return found


class RenamedOptions(TyperCommand):
    """A command that still takes earlier spellings of its options, and says how they are written now."""

    renamed: ClassVar[Mapping[str, str]] = {
        "--csv": "--out csv:",
        "--html": "--out html:",
        "--resume": "--out jsonl:",
        "--store": "--out jsonl:",
        "--groups": "--out groups:",
        "--base-lr": "--also groups=",
        "--quantise": "--also quantise=",
        "--spectrum": "--also spectrum=",
        "--per-head": "--also heads",
        "--pairs": "--also pairs",
        "--forecast": "--dry-run",
        "--tol": "--rtol",
    }

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As typer does, after a translation."""
        own = {name for parameter in self.params for name in parameter.opts}
        known = {old: new for old, new in self.renamed.items() if new.split()[0] in own}
        words, notes = translate_options(args, known)
        if not ctx.resilient_parsing and is_first():
            for note in notes:
                typer.echo(f"hessianlens: {note}", err=True)
        return super().parse_args(ctx, words)


def translate_options(args: Sequence[str], renamed: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Arguments with the options of today, and one note per option that is written otherwise now.

    >>> translate_options(["toy", "--csv", "a.csv", "--pairs"], RenamedOptions.renamed)
    (['toy', '--out', 'csv:a.csv', '--also', 'pairs'],
     ['--csv a.csv is now --out a.csv', '--pairs is now --also pairs'])
    """
    words: list[str] = []
    notes: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*words, word, *rest], notes
        if name not in renamed:
            words.append(word)
            continue
        option, _, prefix = renamed[name].partition(" ")
        if prefix.endswith((":", "=")):
            if not equals and not rest:
                return [*words, option], notes  # which the parser refuses
            value = value if equals else rest.pop(0)
        now = prefix + value
        words += [option, now] if now else [option]
        plain = prefix.endswith(":") and value.endswith(f".{prefix[:-1]}")
        notes.append(f"{' '.join(filter(None, (name, value)))} is now {f'{option} {value if plain else now}'.strip()}")
    return words, notes
