"""Eigenvalues, sorted: signs, pairs and sizes at a glance."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from hessianlens.lab.plots.style import BLUE, INK, MUTED, ORANGE, panels
from hessianlens.lab.results import FinishedCell, Result
from hessianlens.lab.wording import power_of_ten

PAIRED = {
    "t_functional": "T-functional",
    "t_outer": "T-outer product",
    "full": "whole query-key Hessian",
}
PARAMETERS = {"dual": "$W_Q$ and $W_K$", "single": "$W_{QK}$"}
_DECADES = 3
"""Decades below the largest eigenvalue that are shown logarithmically; smaller ones lie on a linear scale."""


def draw_paired(result: Result) -> Figure:
    """The three spectra of the query-key part for each activation, first draw."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["activation"]), cell)
    with panels(len(PAIRED), len(cells), width=3.7, height=3.2, sharey="row") as (figure, all_axes):
        axes_of = iter(all_axes)
        for activation, cell in cells.items():
            arrays = cell.measurement.arrays
            top = max(float(np.abs(arrays[part]).max()) for part in PAIRED)
            for part, title in PAIRED.items():
                axes = next(axes_of)
                _spectrum(axes, arrays[part], top)
                axes.set_title(f"{title}, {activation}", size=10)
                if part == "t_functional":
                    axes.plot(
                        np.arange(1, len(arrays[part]) + 1), arrays["closed_form"], color=INK, linewidth=1, zorder=3
                    )
                    axes.plot([], [], color=INK, linewidth=1, label="± singular values of B")
                    axes.legend(loc="upper left", handlelength=1.2, borderaxespad=0.1)
                    axes.set_ylabel("eigenvalue (loss / weight²)")
        for axes in all_axes[-len(PAIRED) :]:
            axes.set_xlabel("eigenvalue number, ascending")
    return figure


def draw_parameterisations(result: Result) -> Figure:
    """The spectra of one matrix and of two at the same function, first draw of each query width."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["d_k"]), cell)
    with panels(len(cells), len(PARAMETERS), width=3.7, height=3.0, sharey=True) as (figure, all_axes):
        top = max(float(np.abs(c.measurement.arrays[n]).max()) for c in cells.values() for n in PARAMETERS)
        for k, (name, title) in enumerate(PARAMETERS.items()):
            for axes, (d_k, cell) in zip(all_axes[k * len(cells) :], cells.items(), strict=False):
                _spectrum(axes, cell.measurement.arrays[name], top)
                axes.set_title(f"{title}, $d_K$ = {d_k}", size=10)
            all_axes[k * len(cells)].set_ylabel("eigenvalue (loss / weight²)")
        for axes in all_axes[-len(cells) :]:
            axes.set_xlabel("eigenvalue number, ascending")
    return figure


def _spectrum(axes: Axes, values: np.ndarray, top: float) -> None:
    """Eigenvalues as dots by sign, with their counts; what is within rounding of zero is grey."""
    least = len(values) * np.finfo(values.dtype).eps * np.abs(values).max()
    index = np.arange(1, len(values) + 1)
    groups = {
        "positive": (values > least, BLUE, "o"),
        "negative": (values < -least, ORANGE, "v"),
        "zero": (np.abs(values) <= least, MUTED, "."),
    }
    for chosen, colour, marker in groups.values():
        axes.plot(index[chosen], values[chosen], marker, color=colour, markersize=3.6, markeredgewidth=0)
    counts = ", ".join(f"{int(chosen.sum())} {name}" for name, (chosen, _, _) in groups.items())
    axes.text(0.98, 0.03, counts, transform=axes.transAxes, ha="right", va="bottom", size=8.5, color=MUTED)
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=0)
    highest = int(np.ceil(np.log10(top)))
    threshold = 10.0 ** (highest - _DECADES)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.6)
    decades = [10.0**e for e in range(highest - _DECADES, highest + 1)]
    axes.set_yticks([-d for d in reversed(decades)] + [0.0, *decades])
    axes.yaxis.set_major_formatter(FuncFormatter(_signed_power))
    axes.yaxis.set_minor_locator(NullLocator())


def _signed_power(value: float, _: object = None) -> str:
    if value == 0:
        return "0"
    return ("−" if value < 0 else "") + power_of_ten(np.log10(abs(value)))
