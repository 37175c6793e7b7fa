"""Figure 7: a row for each depth, the three parts side by side, a line for each layer."""

from __future__ import annotations

from hessianlab.growth.findings.reference import Reference
from hessianlab.growth.pictures.drawing import growth_picture
from hessianlab.growth.pictures.layout import blocks_of, layers_by_depth, unfolded_first
from hessianlab.plots.picture import Picture
from hessianlab.results import Result


def draw_all(result: Result, reference: Reference | None = None) -> list[Picture]:
    """One picture of the query blocks and one of the value blocks."""
    return [
        growth_picture(block, result, layers_by_depth(result, block), reference, folded)
        for block, folded in unfolded_first(blocks_of(result)).items()
    ]
