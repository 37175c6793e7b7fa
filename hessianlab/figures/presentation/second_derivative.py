"""Figure 2 of the paper, computed: the Hessians of the output's entries, stacked, and the powers in every block."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hessianlab.experiments.statistics import numbers, select
from hessianlab.figures.second_derivative import BLOCKS, VARIABLES, WEIGHTS
from hessianlab.plots.charts import draw_cell, frame_cells, log_colour_bar, log_scale
from hessianlab.plots.picture import Presentation, captioned
from hessianlab.plots.style import panel, panels
from hessianlab.results import Findings, Result
from hessianlab.wording import several, short

TOLERANCE = 0.01
"""A measured power within this of the counted one is that power."""


def fig2_sentences(result: Result) -> list[str]:
    """Whether the stack is the second derivative, what is zero in it, and whether the powers are the counted ones."""
    gaps = {check: max(numbers(select(result, check=check), "gap")) for check in ("autograd", "functional")}
    stack, _ = _first(result)
    zero = [block for block in BLOCKS if all(row["power"] is None for row in select(result, block=block))]
    pairs = [
        (row["power"], row["counted"]) for block in BLOCKS for row in select(result, block=block) if block not in zero
    ]
    off = max(abs(float(p) - float(c)) for p, c in pairs if p is not None and c is not None)
    right = sum(p is not None and c is not None and abs(float(p) - float(c)) <= TOLERANCE for p, c in pairs)
    L, d, p, _ = stack.shape
    vanishing = f"The block {several(zero)} is zero in the Hessian of every entry. " if zero else ""
    return [
        f"The second derivative of the {L} × {d} output with respect to {p} weights is the stack of the {L * d} "
        f"Hessians of its entries, {L * d * p} × {p} numbers: closed form and repeated automatic differentiation "
        f"differ by {short(gaps['autograd'])} of the largest entry at most.",
        "Weighted with the gradient of the loss and summed, the stack is the functional Hessian, to "
        f"{short(gaps['functional'])} of its largest entry.",
        f"{vanishing}In the other blocks {right} of {len(pairs)} measured powers of the tokens and weights are those "
        f"that Theorem 3.2 has; the largest difference is {short(off)}.",
    ]


def _first(result: Result) -> tuple[np.ndarray, list[int]]:
    arrays = result.cells[0].measurement.arrays
    return arrays["stack"], [int(size) for size in arrays["sizes"]]


def draw_stack(result: Result) -> Figure:
    """The Hessian of every entry of F in the entry's place, and the same matrices under each other."""
    stack, sizes = _first(result)
    L, d, p, _ = stack.shape
    with np.errstate(divide="ignore"):
        logs = np.log10(np.abs(stack))
    placed = logs.transpose(0, 2, 1, 3).reshape(L * p, d * p)
    scale = log_scale([logs], 1.0)
    with panels(2, width=4.4, height=8.0) as (figure, (left, right)):
        _matrix(left, placed, sizes, (L, d), scale)
        left.set_title("Hessian of each entry of F,\nin the place of the entry")
        left.set_xlabel(f"columns of F, the weights {', '.join(WEIGHTS)} in each")
        left.set_ylabel("rows of F, the weights in each")
        image = _matrix(right, logs.reshape(L * d * p, p), sizes, (L * d, 1), scale)
        right.set_yticks(
            [(entry + 0.5) * p - 0.5 for entry in range(L * d)],
            [f"F$_{{{i + 1}{j + 1}}}$" for i in range(L) for j in range(d)],
        )
        right.set_title("stacked: second derivative of F")
        right.set_xlabel("weights Q, K, V")
        log_colour_bar(figure, right, image, "|second derivative|; blank: exactly zero")
    return figure


def _matrix(axes: Axes, logs: np.ndarray, sizes: list[int], tiles: tuple[int, int], scale: Normalize) -> AxesImage:
    """An image with lines between the Hessians, and thin ones between the blocks of the weights."""
    colours = mpl.colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0))
    image = axes.imshow(np.ma.masked_invalid(logs), cmap=colours, norm=scale, interpolation="nearest")
    p, ends = sum(sizes), np.cumsum(sizes)
    for count, line in ((tiles[0], axes.axhline), (tiles[1], axes.axvline)):
        for tile in range(count):
            for end in ends[:-1]:
                line(tile * p + end - 0.5, color="white", linewidth=0.5)
            if tile:
                line(tile * p - 0.5, color="black", linewidth=1.4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    return image


_NAMES = {"X": "tokens", "Q": "query", "K": "key", "V": "value"}
_SCALE = Normalize(-1.0, 5.5)


def draw_powers(result: Result) -> Figure:
    """Measured powers of the tokens and of the three weights in every block, means over draws."""
    with panel(4.6, 3.8) as (figure, axes):
        for y, block in enumerate(BLOCKS):
            for x, variable in enumerate(VARIABLES):
                found = numbers(select(result, block=block, variable=variable), "power")
                mean = float(np.mean(found)) if len(found) else None
                text = "zero" if mean is None else f"{mean + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")
                draw_cell(axes, (x, y), mean, text, _SCALE)
        frame_cells(axes, [_NAMES[variable] for variable in VARIABLES], BLOCKS)
        axes.set_xlabel("power of the tokens, and of the weight matrices")
        axes.set_ylabel("block of the second derivative")
    return figure


_PICTURES = {
    "stack": (
        draw_stack,
        "Absolute second derivatives of the output of a softmax attention layer with respect to its weights, on a "
        "logarithmic colour scale. Left, one Hessian per entry of the output F, in the place of that entry; right, the "
        "same matrices stacked, rows of F first, as the paper lays out the second derivative of a matrix. Black lines "
        "separate entries of F, white ones the weights.",
    ),
    "powers": (
        draw_powers,
        "Power with which the norm of each block of the second derivative grows when the tokens, or one weight matrix, "
        "are multiplied by a small factor; means over draws. “zero” is a block that vanishes.",
    ),
}

PRESENTATIONS = {"fig2": Presentation(Findings(fig2_sentences), captioned(_PICTURES))}
