"""One query-key matrix and two, compared in a few numbers."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlens.lab.analysis.findings.table import numbers, select
from hessianlens.lab.plots.style import BLUE, ORANGE, log_axis, panels
from hessianlens.lab.results import Result

KINDS = {"dual": ("$W_Q$ and $W_K$", BLUE, "o", -0.12), "single": ("$W_{QK}$", ORANGE, "D", 0.12)}
QUANTITIES = {
    "negative_share": ("Negative curvature", "share of the sum of |eigenvalues|", False),
    "condition": ("Condition number", "largest / smallest non-zero |λ|", True),
    "norm": ("Norm of the Hessian", "Frobenius norm (loss / weight²)", True),
    "gradient": ("Norm of the gradient", "norm (loss / weight)", True),
}


def draw(result: Result) -> Figure:
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
            axes.set_xlabel("query width $d_K$")
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
