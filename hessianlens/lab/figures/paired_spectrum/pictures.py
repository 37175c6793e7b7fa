"""The three spectra of the query-key part."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.spectrum import draw_spectrum
from hessianlens.lab.plots.style import INK, panels
from hessianlens.lab.results import FinishedCell, Result

PAIRED = {
    "t_functional": "T-functional",
    "t_outer": "T-outer product",
    "full": "whole query-key Hessian",
}

CAPTION = (
    "Eigenvalues of the query-key part of one draw, on an axis that is linear near zero and logarithmic beyond: blue "
    "dots positive, yellow triangles negative, grey zero. The line is the closed form, plus and minus the singular "
    "values of a d × d matrix."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The one picture."""
    return [Picture("spectra", draw(result), CAPTION)]


def draw(result: Result) -> Figure:
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
                draw_spectrum(axes, arrays[part], top)
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
