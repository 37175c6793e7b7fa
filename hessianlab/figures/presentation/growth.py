"""Figures 3 and 5 to 8 of the paper: exponents in sentences, and norms against sigma in panels."""

from __future__ import annotations

from hessianlab.growth.drawing import growth_picture
from hessianlab.growth.exponents import exponent_fits
from hessianlab.growth.layout import blocks_of, layers_by_depth, panel_a_depth, parts_of_blocks, unfolded_first
from hessianlab.growth.reference import Reference
from hessianlab.growth.sentences import GrowthFindings, growth_sentences, series_in_words, slope_in_words
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.results import Result


def sentences_with_one_line(result: Result) -> list[str]:
    """As of every growth figure, and the slopes of the lines through everything, which the paper fits with norms."""
    lines = [fit for fit in exponent_fits(result) if fit.range.name == "all"]
    slopes = "; ".join(f"{series_in_words(fit)} {slope_in_words(fit)}" for fit in lines)
    line = [f"The paper fits one straight line to all σ; such a line has the slope: {slopes}."] if lines else []
    return [*growth_sentences(result), *line]


def draw_parts(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """The query and the value block, a line for each part; a row for each range of sigma."""
    return [growth_picture("growth", result, parts_of_blocks(result), reference)]


def draw_layers(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """One picture per block: a row for each depth, the three parts side by side, a line for each layer."""
    return [
        growth_picture(block, result, layers_by_depth(result, block), reference, folded)
        for block, folded in unfolded_first(blocks_of(result)).items()
    ]


def draw_depths(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """A panel for each depth, a line for each layer."""
    return [growth_picture("growth", result, panel_a_depth(result), reference)]


FINDINGS = GrowthFindings(growth_sentences)

PRESENTATIONS = {
    "fig3a": Presentation(FINDINGS, draw_parts),
    "fig3b": Presentation(GrowthFindings(sentences_with_one_line), draw_parts),
    "fig5": Presentation(FINDINGS, draw_parts),
    "fig6": Presentation(FINDINGS, draw_layers),
    "fig7": Presentation(FINDINGS, draw_layers),
    "fig8": Presentation(FINDINGS, draw_depths),
}
