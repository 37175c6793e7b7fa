"""One query-key matrix and two: their spectra, and a few numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.charts import draw_spectrum
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import BLUE, ORANGE, log_axis, panels
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.results.table import numbers, select, short

NAMES = {"dual": "two matrices", "single": "one matrix"}


def sentences(result: Result) -> list[str]:
    """Same function, other curvature: signs, rank, conditioning and gradients."""
    rows = {name: select(result, parameters=name, part="full") for name in NAMES}
    gap = float(numbers(rows["dual"], "output_gap").max())
    share = {name: 100 * numbers(found, "negative_share").mean() for name, found in rows.items()}
    count = {name: 100 * (numbers(f, "negative") / numbers(f, "size")).mean() for name, f in rows.items()}
    condition = {name: float(np.median(numbers(found, "condition"))) for name, found in rows.items()}
    norm, gradient = (numbers(rows["dual"], field) / numbers(rows["single"], field) for field in ("norm", "gradient"))
    return [
        f"Outputs agree to {short(gap)}. Negative eigenvalues make up {share['dual']:.0f} % of the absolute spectrum "
        f"(and {count['dual']:.0f} % of all eigenvalues) with two matrices, {share['single']:.0f} % "
        f"({count['single']:.0f} %) with one.",
        f"The norm of the query-key Hessian with two matrices is {short(float(norm.min()))} to "
        f"{short(float(norm.max()))} times that with one, the norm of the gradient {short(float(gradient.min()))} to "
        f"{short(float(gradient.max()))} times.",
        "The median condition number on the directions that are curved is "
        + ", ".join(f"{short(condition[name])} with {text}" for name, text in NAMES.items())
        + ".",
    ]


KINDS = {"dual": ("Two matrices", BLUE, "o", -0.12), "single": ("One matrix", ORANGE, "D", 0.12)}
QUANTITIES = {
    "negative_share": ("Negative curvature", "share of the sum of |eigenvalues|", False),
    "condition": ("Condition number", "largest / smallest non-zero |λ|", True),
    "norm": ("Norm of the Hessian", "Frobenius norm (loss / weight²)", True),
    "gradient": ("Norm of the gradient", "norm (loss / weight)", True),
}


def draw_numbers(result: Result) -> Figure:
    """Means over draws (geometric on logarithmic axes) with their range, by query width."""
    widths = [int(w) for w in np.unique(numbers(result.rows(), "d_k"))]
    with panels(2, 2, width=4.2, height=3.2) as (figure, all_axes):
        for axes, (field, (title, unit, logarithmic)) in zip(all_axes, QUANTITIES.items(), strict=True):
            for kind in KINDS:
                for at, d_k in enumerate(widths):
                    values = numbers(select(result, parameters=kind, part="full", d_k=d_k), field)
                    _point(axes, at, kind, values, logarithmic)
            axes.set_xticks(range(len(widths)), [str(w) for w in widths])
            axes.set_xlim(-0.5, len(widths) - 0.5)
            axes.set_xlabel("query width")
            axes.set_title(title)
            axes.set_ylabel(unit)
            if logarithmic:
                log_axis(axes, "y")
                low, high = np.log10(axes.dataLim.intervaly)
                axes.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
            else:
                axes.set_ylim(bottom=0)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _point(axes: Axes, at: int, kind: str, values: np.ndarray, logarithmic: bool) -> None:
    label, colour, marker, shift = KINDS[kind]
    middle = 10 ** np.log10(values).mean() if logarithmic else values.mean()
    axes.plot([at + shift] * 2, [values.min(), values.max()], color=colour, linewidth=1.4)
    axes.plot([at + shift], [middle], marker, color=colour, label=label if at == 0 else None)


def draw_spectra(result: Result) -> Figure:
    """The spectra of one matrix and of two at the same function, first draw of each query width."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["d_k"]), cell)
    with panels(len(cells), len(KINDS), width=3.7, height=3.0, sharey=True) as (figure, all_axes):
        top = max(float(np.abs(c.measurement.arrays[n]).max()) for c in cells.values() for n in KINDS)
        for k, (name, (title, *_)) in enumerate(KINDS.items()):
            for axes, (d_k, cell) in zip(all_axes[k * len(cells) :], cells.items(), strict=False):
                draw_spectrum(axes, cell.measurement.arrays[name], top)
                axes.set_title(f"{title}, query width {d_k}", size=10)
            all_axes[k * len(cells)].set_ylabel("eigenvalue (loss / weight²)")
        for axes in all_axes[-len(cells) :]:
            axes.set_xlabel("eigenvalue number, ascending")
    return figure


CAPTIONS = {
    "spectra": "Eigenvalues of the query-key Hessian with two matrices, and with one that computes the same "
    "function; blue dots positive, yellow triangles negative.",
    "numbers": "The same function with two query-key matrices and with one: marks are means over draws (geometric "
    "ones on logarithmic axes), bars reach from the smallest to the largest draw.",
}


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The spectra of the first draw, and what all draws have in common."""
    drawn = {"spectra": draw_spectra(result), "numbers": draw_numbers(result)}
    return [ResultPicture(name, figure, CAPTIONS[name]) for name, figure in drawn.items()]


PRESENTATIONS = {"parameterisations": Presentation(Findings(sentences), draw_all)}
