"""The pictures of any experiment, with the words below them."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from hessianlens.lab.analysis.exponents import exponent_fits
from hessianlens.lab.analysis.reference import Reference
from hessianlens.lab.plots import growth
from hessianlens.lab.plots.captions import CAPTIONS
from hessianlens.lab.plots.growth_text import caption
from hessianlens.lab.plots.registry import DRAW
from hessianlens.lab.results import Result


@dataclass(frozen=True)
class Picture:
    """One figure of a result.

    Attributes:
        name: Unique within the experiment.
        figure: The drawing.
        caption: What lines, colours and axes mean.
    """

    name: str
    figure: Figure
    caption: str


def pictures(result: Result, reference: Reference | None = None) -> list[Picture]:
    """Every picture of a result; growth figures show published means where `reference` has them.

    None for an experiment that nobody draws.
    """
    if result.experiment in DRAW:
        drawn = DRAW[result.experiment](result)
        return [Picture(name, figure, CAPTIONS[result.experiment, name]) for name, figure in drawn.items()]
    if "fit_ranges" not in result.config:
        return []
    fits = exponent_fits(result)
    return [Picture("growth", growth.draw(result, fits, reference), caption(result, fits))]
