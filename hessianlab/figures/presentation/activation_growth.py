"""How fast blocks grow with the token scale, by attention activation."""

from __future__ import annotations

from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import BLUE, MUTED, ORANGE, RED, log_axis, panels, readable_on
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.results.table import choices, numbers, select, short
from hessianlab.wording import activation_in_words

TOLERANCE = 0.05
"""A measured exponent agrees with the predicted one within this."""


def agreements(result: Result) -> dict[tuple[str, str, str], bool]:
    """Whether all draws of an activation, part and block have the predicted exponent, or vanish as predicted."""
    found: dict[tuple[str, str, str], bool] = {}
    for row in result.rows():
        key = str(row["activation"]), str(row["part"]), str(row["block"])
        found[key] = found.get(key, True) and _agrees(row["exponent"], row["predicted"])
    return found


def _agrees(exponent: object, predicted: object) -> bool:
    if not isinstance(exponent, float) or not isinstance(predicted, int):
        return exponent is None and predicted is None
    return abs(exponent - predicted) <= TOLERANCE


def sentences(result: Result) -> list[str]:
    """Agreement with the prediction, and which activations share the heterogeneity of softmax."""
    agree = agreements(result)
    rows = [row for row in result.rows() if row["exponent"] is not None and row["predicted"] is not None]
    off = abs(numbers(rows, "exponent") - numbers(rows, "predicted"))
    wrong = [" ".join(key) for key, good in agree.items() if not good]
    verdict = f" It fails for {', '.join(wrong)}." if wrong else ""
    spreads = {name: _outer_gap(result, name) for name in choices(result, "activation")}
    unlike = [f"{activation_in_words(name)} ({short(gap)})" for name, gap in spreads.items() if gap > 0.5]
    uniform = [activation_in_words(name) for name, gap in spreads.items() if gap <= 0.5]
    return [
        f"{sum(agree.values())} of {len(agree)} combinations of activation, part and block grow as the activation near "
        f"zero predicts; the largest difference of an exponent is {short(float(off.max()))}.{verdict}",
        f"The outer-product query block grows faster than the value block with {', '.join(unlike) or 'none'} "
        f"(difference of exponents), and at the same rate with {', '.join(uniform) or 'none'}.",
    ]


def _outer_gap(result: Result, activation: str) -> float:
    """Mean exponent of the outer QQ block minus that of the outer VV block."""
    query, value = (
        numbers(select(result, activation=activation, part="outer", block=block), "exponent").mean()
        for block in ("QQ", "VV")
    )
    return float(query - value)


CURVES: dict[tuple[str, str], tuple[str, Any]] = {
    ("outer", "QQ"): (BLUE, "-"),
    ("functional", "QQ"): (ORANGE, (0, (4, 1.5))),
    ("outer", "VV"): (RED, (0, (1, 1))),
}
CURVE_ACTIVATIONS = ("softmax", "sigmoid", "linear", "relu_normalised")


def draw_exponents(result: Result) -> Figure:
    """Measured exponents as a table for each part, one line an activation, one column a block."""
    names = choices(result, "activation")
    blocks: dict[str, list[str]] = {}
    for row in result.rows():
        own = blocks.setdefault(str(row["part"]), [])
        if row["block"] not in own:
            own.append(str(row["block"]))
    agree = agreements(result)
    with panels(len(blocks), width=5.0, height=0.34 * len(names) + 1.2) as (figure, all_axes):
        for axes, (part, columns) in zip(all_axes, blocks.items(), strict=True):
            for y, name in enumerate(names):
                for x, block in enumerate(columns):
                    found = numbers(select(result, activation=name, part=part, block=block), "exponent")
                    _cell(axes, x, y, found, agree[name, part, block])
            axes.set_xlim(-0.5, len(columns) - 0.5)
            axes.set_ylim(len(names) - 0.5, -0.5)
            axes.set_xticks(range(len(columns)), columns)
            axes.set_yticks(range(len(names)), [activation_in_words(n) for n in names])
            axes.tick_params(length=0, labeltop=True, labelbottom=False)
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            axes.set_title(f"{part.capitalize()} part", pad=12)
    return figure


def _cell(axes: Axes, x: int, y: int, found: np.ndarray, agrees: bool) -> None:
    mark = "" if agrees else " ✗"
    if found.size == 0:
        axes.text(x, y, f"zero{mark}", ha="center", va="center", color=MUTED)
        return
    mean = float(found.mean())
    colour = mpl.colormaps["cividis"](Normalize(0, 8)(mean))
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=colour, linewidth=0))
    axes.text(x, y, f"{mean:.2f}{mark}", ha="center", va="center", color=readable_on(colour))


def draw_curves(result: Result) -> Figure:
    """Norms of the query and value blocks against the token scale; the fitted range is shaded, bands are the draws."""
    cells: dict[str, list[FinishedCell]] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["activation"]), []).append(cell)
    names = [name for name in CURVE_ACTIVATIONS if name in cells] or list(cells)[: len(CURVE_ACTIVATIONS)]
    columns = min(2, len(names))
    with panels(columns, -(-len(names) // columns), width=4.4, height=3.5, sharex=True, sharey=True) as (
        figure,
        all_axes,
    ):
        for axes, name in zip(all_axes, names, strict=False):
            _curves(axes, cells[name])
            axes.set_title(activation_in_words(name))
        for axes in all_axes[len(names) :]:
            axes.set_axis_off()
        for axes in all_axes[-columns:]:
            axes.set_xlabel("token scale σ (dimensionless)")
        for axes in all_axes[::columns]:
            axes.set_ylabel("norm (loss / weight²)")
    return figure


def _curves(axes: Axes, cells: list[FinishedCell]) -> None:
    log_axis(axes, "x", most=5)
    log_axis(axes, "y", most=7)
    sigmas = cells[0].measurement.arrays["sigmas"]
    order = [(row["part"], row["block"]) for row in cells[0].measurement.rows]
    for (part, block), (colour, style) in CURVES.items():
        at = order.index((part, block))
        norms = np.array([cell.measurement.arrays["norms"][at] for cell in cells])
        if norms.min() <= 0:
            axes.plot([], [], color=colour, linestyle=style, label=f"{part} {block}: exactly zero")
            continue
        slope = numbers([cell.measurement.rows[at] for cell in cells], "exponent").mean()
        axes.fill_between(sigmas, norms.min(0), norms.max(0), color=colour, alpha=0.18, linewidth=0)
        middle = 10 ** np.log10(norms).mean(0)
        width = 3.0 if (part, block) == ("outer", "QQ") else 2.0
        label = f"{part} {block}: σ to the power {slope:.2f}"
        axes.plot(sigmas, middle, color=colour, linestyle=style, linewidth=width, label=label)
    fitted = sigmas[np.all([cell.measurement.arrays["fitted"] for cell in cells], axis=0)]
    axes.axvspan(fitted.min(), fitted.max(), color=MUTED, alpha=0.1, linewidth=0)
    axes.legend(loc="lower right", handlelength=2.4)


CAPTIONS = {
    "exponents": "Multiply the tokens by a small σ: each block's norm goes as σ to the power in its cell, here as "
    "measured (mean over draws), with the loss gradient held; “zero” is a block that vanishes. A cross would mark a "
    "power that counting does not predict.",
    "curves": "The norms behind four rows of the table: lines are means over draws, bands the smallest to the largest "
    "draw, and powers are fitted in the shaded range.",
}


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The table of exponents, and the curves behind some of its rows."""
    drawn = {"exponents": draw_exponents(result), "curves": draw_curves(result)}
    return [ResultPicture(name, figure, CAPTIONS[name]) for name, figure in drawn.items()]


PRESENTATIONS = {"activation_growth": Presentation(Findings(sentences), draw_all)}
