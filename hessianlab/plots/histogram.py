"""How the sizes of a block's entries are distributed."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.style import BLUE, RED, panels
from hessianlab.results import FinishedCell, Result
from hessianlab.wording import power_of_ten, scientific

COLOURS = {"query": BLUE, "value": RED}
TITLES = {"softmax": "Softmax attention", "linear": "Linear attention"}
_MARGIN = 0.5


def draw_histograms(result: Result) -> Figure:
    """Histograms of the query and value blocks, one panel a kind of attention, all draws together."""
    groups: dict[str, list[FinishedCell]] = {}
    for cell in result.cells:
        if "edges" in cell.measurement.arrays:
            groups.setdefault(str(cell.parameters.get("attention", "softmax")), []).append(cell)
    with panels(len(groups), width=5.4 if len(groups) == 1 else 4.6, height=3.6, sharex=True, sharey=True) as (
        figure,
        all_axes,
    ):
        for axes, (kind, cells) in zip(all_axes, groups.items(), strict=True):
            _panel(axes, cells)
            axes.set_title(f"{TITLES.get(kind, f'{kind} attention')}, {len(cells)} draws")
            axes.set_xlabel("|entry| of the Hessian block (loss / weight²)")
        all_axes[0].set_ylabel("share of entries (% in 0.1 decade)")
        # Room for the legends; the panels share their axes.
        all_axes[0].set_ylim(0, 1.4 * max(axes.dataLim.y1 for axes in all_axes))
        _powers_of_ten(all_axes[0], [cell for cells in groups.values() for cell in cells])
    return figure


def _panel(axes: Axes, cells: list[FinishedCell]) -> None:
    edges = cells[0].measurement.arrays["edges"]
    for name, colour in COLOURS.items():
        counts = np.sum([cell.measurement.arrays[name] for cell in cells], axis=0)
        share = 100 * counts / counts.sum()
        axes.stairs(share, edges, color=colour, fill=True, alpha=0.25)
        middle = float(np.interp(0.5, np.cumsum(counts) / counts.sum(), edges[1:]))
        label = f"{name} block, median {scientific(10**middle)}"
        style: Any = "-" if name == "value" else (0, (4, 1.5))
        axes.stairs(share, edges, color=colour, linewidth=1.6, linestyle=style, label=label)
        axes.vlines(middle, 0, share[np.searchsorted(edges, middle) - 1], color=colour, linewidth=1)
    axes.legend(loc="upper left")


def _powers_of_ten(axes: Axes, cells: list[FinishedCell]) -> None:
    """Labels at every second power of ten, over the range that holds nearly all entries."""
    edges = cells[0].measurement.arrays["edges"]
    counts = np.sum([cell.measurement.arrays[name] for cell in cells for name in COLOURS], axis=0)
    total = np.cumsum(counts) / counts.sum()
    low, high = edges[np.searchsorted(total, 0.001)], edges[np.searchsorted(total, 0.9999) + 1]
    axes.set_xlim(low - _MARGIN, high + _MARGIN)
    ticks = np.arange(np.ceil(low - _MARGIN), high + _MARGIN)
    axes.set_xticks(ticks[:: 1 if len(ticks) < 9 else 2])
    axes.xaxis.set_major_formatter(lambda value, _: power_of_ten(value))
