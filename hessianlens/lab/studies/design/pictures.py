"""Small multiples: every quantity by activation and norm; and the ranking."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.style import BLUE, GREEN, ORANGE, log_axis, panel, panels
from hessianlens.lab.results import Result
from hessianlens.lab.results.table import choices, numbers, select
from hessianlens.lab.studies.design.findings import COLUMNS, designs, named, values

COLOURS = {"none": BLUE, "pre": ORANGE, "post": GREEN}
_SHOWN = 40
"""Combinations in the ranking, from both ends."""


def draw_multiples(result: Result) -> Figure:
    """A panel a quantity: activations along, norms by colour; bars reach over draws and all other choices."""
    names = choices(result, "activation")
    with panels(3, 2, width=3.7, height=3.2) as (figure, all_axes):
        for axes, (quantity, heading) in zip(all_axes, COLUMNS.items(), strict=True):
            for place, norm in enumerate(choices(result, "norm")):
                for x, name in enumerate(names):
                    found = numbers(select(result, stage="design", activation=name, norm=norm), quantity)
                    if len(found):
                        at = x + 0.18 * (place - 0.5)
                        axes.plot([at, at], [found.min(), found.max()], color=COLOURS[norm], linewidth=1.6)
                        axes.plot([at], [np.median(found)], "o", color=COLOURS[norm], markersize=5)
            if quantity in ("spread", "moment1", "moment2"):
                log_axis(axes, "y")
            axes.set_xticks(range(len(names)), [name.replace("_", "\n") for name in names], fontsize=8)
            axes.set_title(heading)
        for norm in choices(result, "norm"):
            all_axes[0].plot([], [], "o", color=COLOURS[norm], label=f"norm: {norm}")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def draw_ranking(result: Result) -> Figure:
    """The ratio of the largest to the smallest block, by combination."""
    ranked = designs(result)
    shown = ranked if len(ranked) <= _SHOWN else ranked[: _SHOWN // 2] + ranked[-_SHOWN // 2 :]
    with panel(6.4, 1.2 + 0.2 * len(shown)) as (figure, axes):
        for y, design in enumerate(shown):
            found = values(result, design, "spread")
            if len(found):
                colour = COLOURS[str(design["norm"])]
                axes.plot([found.min(), found.max()], [y, y], color=colour, linewidth=1.6)
                axes.plot([np.exp(np.log(found).mean())], [y], "o", color=colour, markersize=5)
        log_axis(axes, "x")
        axes.set_yticks(range(len(shown)), [named(design) for design in shown], fontsize=8)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("largest over smallest block (root mean square eigenvalues)")
    return figure


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The small multiples and the ranking."""
    left_out = max(0, len(designs(result)) - _SHOWN)
    middle = f" {left_out} combinations in the middle are left out." if left_out else ""
    return [
        Picture(
            "multiples",
            draw_multiples(result),
            "Attention's blocks at initialisation by activation and norm: marks are medians, bars reach over draws of "
            "the weights and over all other choices.",
        ),
        Picture(
            "ranking",
            draw_ranking(result),
            "Combinations ranked by how unlike attention's blocks are; colours are norms as above, marks geometric "
            f"means over draws, bars reach from the smallest to the largest draw.{middle}",
        ),
    ]
