"""Figure 5: the query and the value block on linear axes, a row for each range of sigma."""

from __future__ import annotations

from hessianlab.growth.findings.reference import Reference
from hessianlab.growth.pictures.drawing import growth_picture
from hessianlab.growth.pictures.layout import parts_of_blocks
from hessianlab.plots.picture import Picture
from hessianlab.results import Result


def draw_all(result: Result, reference: Reference | None = None) -> list[Picture]:
    """The one picture."""
    return [growth_picture("growth", result, parts_of_blocks(result), reference)]
