"""Small multiples: every quantity by activation and norm; and the ranking."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hessianlab.plots.picture import Picture
from hessianlab.plots.style import log_axis, panel
from hessianlab.results import Result
from hessianlab.studies.design.findings import designs, multiples, named, values
from hessianlab.trials.pictures.charts import draw_chart, look_of

_SHOWN = 40
"""Combinations in the ranking, from both ends."""


def draw_ranking(result: Result) -> Figure:
    """The ratio of the largest to the smallest block, by combination."""
    ranked = designs(result)
    norms = multiples(result).legend
    shown = ranked if len(ranked) <= _SHOWN else ranked[: _SHOWN // 2] + ranked[-_SHOWN // 2 :]
    with panel(6.4, 1.2 + 0.2 * len(shown)) as (figure, axes):
        for y, design in enumerate(shown):
            found = values(result, design, "spread")
            if len(found):
                colour = look_of(norms.index(f"norm: {design['norm']}"))[0]
                axes.plot([found.min(), found.max()], [y, y], color=colour, linewidth=1.6)
                axes.plot([np.exp(np.log(found).mean())], [y], "o", color=colour, markersize=5)
        log_axis(axes, "x")
        axes.set_yticks(range(len(shown)), [named(design) for design in shown], fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("largest over smallest block (root mean square eigenvalues)")
    return figure


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The small multiples and the ranking."""
    chart = multiples(result)
    left_out = max(0, len(designs(result)) - _SHOWN)
    middle = f" {left_out} combinations in the middle are left out." if left_out else ""
    return [
        Picture("multiples", draw_chart(chart, width=3.7, height=3.2), chart.caption),
        Picture(
            "ranking",
            draw_ranking(result),
            "Combinations ranked by how unlike attention's blocks are; colours are norms as above, marks geometric "
            f"means over draws, bars reach from the smallest to the largest draw.{middle}",
        ),
    ]
