"""Facts in, one self-contained HTML page out."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hessianlens.errors import InputError
from hessianlens.lab.layer_page.facts import GrowthCurve, LayerFacts
from hessianlens.lab.layer_page.figures import BLOCK_COLOURS, PART_COLOURS, draw
from hessianlens.lab.layer_page.findings import findings, whole
from hessianlens.lab.layer_page.snippets import snippets
from hessianlens.lab.layer_page.wording import column, number, percent
from hessianlens.lab.plots.style import PALETTE

FILE_NAME = "index.html"
HEADINGS = {
    "witnesses": ("witnesses", "Three witnesses"),
    "blocks": ("blocks", "Blocks"),
    "curvature": ("blocks", "Negative curvature"),
    "growth": ("growth", "Growth"),
    "pairs": ("query-key", "Pairs"),
    "ranks": ("query-key", "Rank"),
    "sharpness": ("sharpness", "Sharp attention"),
}
"""Finding, section of the page it belongs to, and what to call it in the summary."""


def render(facts: LayerFacts) -> str:
    """The page: everything it needs is inside it, and every number on it comes from `facts`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "percent": percent}
    names = {light: name for name, (light, _) in PALETTE.items()}
    return environment.get_template("page.html.jinja").render(
        facts=facts,
        c=facts.config,
        figures={name: Markup(svg) for name, svg in draw(facts).items()},
        found=findings(facts),
        headings=HEADINGS,
        code=snippets(facts),
        outer=whole(facts, "outer"),
        norm_columns={part: column([getattr(b, part) for b in facts.blocks]) for part in PART_COLOURS},
        exponents=exponent_table(facts),
        command=command(facts),
        light={name: colours[0] for name, colours in PALETTE.items()},
        dark={name: colours[1] for name, colours in PALETTE.items()},
        block_colours={block: names[colour] for block, colour in BLOCK_COLOURS.items()},
        part_colours={part: names[colour] for part, colour in PART_COLOURS.items()},
    )


def exponent_table(facts: LayerFacts) -> list[tuple[str, str, dict[str, GrowthCurve]]]:
    """Growth curves by activation and block, the parts side by side."""
    rows: dict[tuple[str, str], dict[str, GrowthCurve]] = {}
    for curve in facts.growth.curves:
        rows.setdefault((curve.activation, curve.row + curve.column), {})[curve.part] = curve
    return [(activation, block, parts) for (activation, block), parts in rows.items()]


def command(facts: LayerFacts) -> dict[str, object]:
    """The options of the command that measures the same layer; None for one without a value."""
    config = dataclasses.asdict(facts.config)
    causal = "--causal" if config.pop("causal") else "--no-causal"
    return {f"--{name.replace('_', '-')}": value for name, value in config.items()} | {causal: None}


def check_directory(directory: Path) -> None:
    """Raise `InputError` if the page could not be written there, before anything is computed."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise InputError(f"out: cannot write to {directory}: {existing} is a file; give a directory.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"out: cannot write to {directory}: no permission to write in {existing}; give another one.")


def write_page(directory: Path, html: str) -> Path:
    """Write the page whole or not at all: under another name first, then renamed.

    Args:
        directory: Made if it does not exist.
        html: The page.

    Returns:
        The file written.

    Raises:
        InputError: If the directory or the file cannot be written.
    """
    target = directory / FILE_NAME
    partial = directory / f".{FILE_NAME}.{os.getpid()}.part"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        partial.write_text(html, encoding="utf-8")
        partial.replace(target)
    except OSError as error:
        raise InputError(f"out: cannot write {target}: {error.strerror or error}; give another directory.") from error
    finally:
        partial.unlink(missing_ok=True) if directory.is_dir() else None
    return target
