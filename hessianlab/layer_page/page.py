"""Facts in, one self-contained HTML page out."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from markupsafe import Markup

from hessianlab.layer_page.facts import GrowthCurve, LayerFacts
from hessianlab.layer_page.figures import BLOCK_COLOURS, PART_COLOURS, draw
from hessianlab.layer_page.python_code import snippets
from hessianlab.layer_page.sentences import findings, whole
from hessianlab.pages import render_template
from hessianlab.plots.style import PALETTE
from hessianlab.wording import column

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
    names = {light: name for name, (light, _) in PALETTE.items()}
    return render_template(
        Path(__file__).with_name("layer.html.jinja"),
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
