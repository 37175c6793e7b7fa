"""Figure 8: a panel for each depth, a line for each layer."""

from __future__ import annotations

from hessianlab.growth.findings.reference import Reference
from hessianlab.growth.pictures.drawing import growth_picture
from hessianlab.growth.pictures.layout import panel_a_depth
from hessianlab.plots.picture import Picture
from hessianlab.results import Result


def draw_all(result: Result, reference: Reference | None = None) -> list[Picture]:
    """The one picture."""
    return [growth_picture("growth", result, panel_a_depth(result), reference)]
