"""Figure 8: a panel for each depth, a line for each layer."""

from __future__ import annotations

from hessianlens.lab.growth.findings.reference import Reference
from hessianlens.lab.growth.pictures.drawing import growth_picture
from hessianlens.lab.growth.pictures.layout import panel_a_depth
from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.results import Result


def draw_all(result: Result, reference: Reference | None = None) -> list[Picture]:
    """The one picture."""
    return [growth_picture("growth", result, panel_a_depth(result), reference)]
