"""How large blocks are, by attention activation."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.style import BLUE, GREEN, RED, log_axis, panels
from hessianlens.lab.results import Result
from hessianlens.lab.results.table import choices, numbers, select

BLOCKS = {"value": (RED, "s", 0.22), "query": (BLUE, "o", 0.0), "key": (GREEN, "^", -0.22)}
PLACES = {"transformer": "In the one-block Transformer", "layer": "In a layer alone"}


def draw(result: Result) -> Figure:
    """Root mean square entry of every diagonal block; points are geometric means, lines the range of the draws."""
    places, names = choices(result, "place"), choices(result, "activation")
    logs = {
        (place, name, block): np.log10(
            numbers(select(result, place=place, activation=name, block=block, part="full"), "rms")
        )
        for place in places
        for name in names
        for block in BLOCKS
    }
    order = sorted(names, key=lambda n: float(logs[places[0], n, "value"].mean() - logs[places[0], n, "query"].mean()))
    with panels(len(places), width=5.0, height=4.4, sharey=True) as (figure, all_axes):
        for axes, place in zip(all_axes, places, strict=True):
            for y, name in enumerate(order):
                _line(axes, y, {block: 10 ** logs[place, name, block] for block in BLOCKS})
            log_axis(axes, "x", most=8)
            axes.set_yticks(range(len(order)), [n.replace("_", " ") for n in order])
            axes.set_ylim(-0.6, len(order) - 0.4)
            axes.set_title(PLACES.get(place, place))
            axes.set_xlabel("root mean square entry (loss / weight²)")
        for block, (colour, marker, _) in BLOCKS.items():
            all_axes[0].plot([], [], marker, color=colour, label=f"{block} block")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _line(axes: Axes, y: int, sizes: dict[str, np.ndarray]) -> None:
    for block, (colour, marker, shift) in BLOCKS.items():
        found = sizes[block]
        axes.plot([found.min(), found.max()], [y + shift] * 2, color=colour, linewidth=1.4)
        axes.plot([10 ** np.log10(found).mean()], [y + shift], marker, color=colour, markersize=6)


CAPTION = (
    "Root mean square entry of each diagonal block by activation of the attention scores; marks are geometric means "
    "over draws of the weights, bars reach from the smallest to the largest draw."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The one picture."""
    return [Picture("sizes", draw(result), CAPTION)]
