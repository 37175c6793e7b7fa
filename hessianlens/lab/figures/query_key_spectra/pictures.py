"""Spectra of the query-key part, the negative eigenvalues mirrored below the positive ones."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlens.lab.figures.query_key_spectra.findings import NAMES
from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.spectrum import draw_mirrored
from hessianlens.lab.plots.style import MUTED, panels
from hessianlens.lab.results import FinishedCell, Result

COLUMNS = {**NAMES, "t_functional": "± pairs"}
"""Parts side by side; the last one is the part of H − G that only two matrices have."""

COUNTS = {"two": "Two matrices", "one": "One matrix"}


def draw(cell: FinishedCell) -> Figure:
    """One draw: a row for two matrices and for one, a column a part, all on the same axes."""
    arrays = cell.measurement.arrays
    names = [name for name in arrays if name != "closed form"]
    top = max(float(np.abs(arrays[name]).max()) for name in names)
    most = max(int(max((arrays[name] > 0).sum(), (arrays[name] < 0).sum())) for name in names)
    with panels(len(COLUMNS), len(COUNTS), width=3.4, height=3.2, sharex=True, sharey=True) as (figure, all_axes):
        places = iter(all_axes)
        for count, words in COUNTS.items():
            for part, letters in COLUMNS.items():
                axes = next(places)
                name = f"{count} {part}"
                if name not in arrays:
                    axes.set_axis_off()
                    continue
                closed = arrays["closed form"] if part == "t_functional" else None
                draw_mirrored(axes, arrays[name], top, closed)
                axes.set_title(f"{words}: {letters}")
                _label(axes)
        all_axes[0].set_xlim(0, most + 1)
    return figure


def _label(axes: Axes) -> None:
    axes.set_xlabel("number, largest first")
    axes.set_ylabel("eigenvalue (loss / weight²)")
    axes.label_outer()
    axes.title.set_color(MUTED)


CAPTION = (
    "Eigenvalues of the query-key part of one draw with {activation} attention, largest absolute value first: positive "
    "ones (blue dots) above zero, negative ones (yellow triangles) below, and in grey the positive ones mirrored, so "
    "that triangles on the grey line have a partner. G is the Gauss-Newton matrix, H − G the rest, H the whole; the "
    "± pairs are the T-functional part of H − G, which one matrix does not have, with its closed form in black: plus "
    "and minus the singular values of a d × d matrix. The axis is linear near zero and logarithmic beyond."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """One picture an activation, of its first draw."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["activation"]), cell)
    return [Picture(name, draw(cell), CAPTION.format(activation=name)) for name, cell in cells.items()]
