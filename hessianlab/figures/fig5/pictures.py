"""Figure 5: the query and the value block on linear axes, a row for each range of sigma."""

from __future__ import annotations

from hessianlens.lab.growth.findings.reference import Reference
from hessianlens.lab.growth.pictures.drawing import growth_picture
from hessianlens.lab.growth.pictures.layout import parts_of_blocks
from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.results import Result


def draw_all(result: Result, reference: Reference | None = None) -> list[Picture]:
    """The one picture."""
    return [growth_picture("growth", result, parts_of_blocks(result), reference)]
