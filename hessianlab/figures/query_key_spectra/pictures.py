"""Spectra of the query-key part, the negative eigenvalues mirrored below the positive ones."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.figures.query_key_spectra.findings import NAMES
from hessianlab.plots.picture import Picture
from hessianlab.plots.spectrum import draw_mirrored
from hessianlab.plots.style import panels
from hessianlab.results import FinishedCell, Result

PAIRS = "t_functional"
"""The part of H − G that only two matrices have."""

COUNTS = {"two": "Two matrices", "one": "One matrix"}


def draw(cell: FinishedCell) -> Figure:
    """One draw: a row for two matrices and for one, a column a part, then the pairs; all on the same axes."""
    arrays = cell.measurement.arrays
    names = [name for name in arrays if name != "closed form"]
    top = max(float(np.abs(arrays[name]).max()) for name in names)
    most = max(int(max((arrays[name] > 0).sum(), (arrays[name] < 0).sum())) for name in names)
    shown = [(f"{count} {part}", f"{words}: {NAMES[part]}") for count, words in COUNTS.items() for part in NAMES]
    shown.append((f"two {PAIRS}", f"{COUNTS['two']}: ± pairs"))
    rows = len(COUNTS) + 1
    with panels(len(NAMES), rows, width=3.8, height=3.2, sharex=True, sharey=True) as (figure, all_axes):
        for axes, (name, title) in zip(all_axes, shown, strict=False):
            draw_mirrored(axes, arrays[name], top, arrays["closed form"] if PAIRS in name else None)
            axes.set_title(title)
            _label(axes)
        for axes in all_axes[len(shown) :]:
            axes.set_axis_off()
        all_axes[0].set_xlim(0, most + 1)
    return figure


def _label(axes: Axes) -> None:
    axes.set_xlabel("number, largest first")
    axes.set_ylabel("eigenvalue (loss / weight²)")


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
