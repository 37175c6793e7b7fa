"""Moments, the derivative of softmax and the blocks, from uniform to one-hot attention.

Of the path of temperatures comes first the picture "path", which says by itself what happens. The pictures after it,
"frame-1", "frame-2", ..., are the frames: they share their caption, have the same panels and the same axes, and each
says in `ResultPicture.frame` what is special about it ("temperature 0.42, ..."). A page shows them one at a time, in
this order; on paper the first, the middle and the last one do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hessianlab.experiments.statistics import numbers, select
from hessianlab.plots.picture import Presentation, ResultPicture, captioned
from hessianlab.plots.style import FUNCTIONAL, GAUSS_NEWTON, INK, OBJECTS, PURPLE, log_axis, panels
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.wording import power_of_ten, short

MOMENT_BLOCKS = ("outer VV", "outer QQ", "functional QQ")


def curve(result: Result, quantity: str, field: str = "value", along: str = "factor") -> np.ndarray:
    """A quantity by draw (rows) and, ascending, by factor on the query weights or by temperature (columns)."""
    rows = select(result, quantity=quantity)
    seeds = numbers(rows, "seed")
    order = np.lexsort((numbers(rows, along), seeds))
    return numbers(rows, field)[order].reshape(len(np.unique(seeds)), -1)


def strata_sentences(result: Result) -> list[str]:
    """How well moments rebuild blocks, and what is left of each block near one-hot attention."""
    gaps = max(numbers(select(result, quantity=name), "gap").max() for name in MOMENT_BLOCKS)
    shares = curve(result, "entropy", "share_of_uniform")
    share, typical = shares.mean(0), np.median(shares, axis=0)
    sharpest = {name: curve(result, name)[:, -1] / curve(result, name)[:, 0] for name in MOMENT_BLOCKS}
    outer, functional = curve(result, "outer QQ").mean(0), curve(result, "functional QQ").mean(0)
    peak = int(functional.argmax())
    return [
        "Rebuilt from one attention moment each, the outer value block (M1), the outer query block (M2) and the "
        f"functional query block (M3) differ from the exact ones by {short(float(gaps))} of the norm of the whole "
        "Hessian at most: no more than rounding.",
        f"From the flattest attention (entropy {short(float(typical[0]))} of uniform) to the sharpest "
        f"({short(float(typical[-1]))}) the norm of the value block is multiplied by "
        f"{short(float(np.median(sharpest['outer VV'])))}, that of the outer query block by "
        f"{short(float(np.median(sharpest['outer QQ'])))} and that of the functional query block by "
        f"{short(float(np.median(sharpest['functional QQ'])))} (medians over draws).",
        f"The mean norm of the functional query block is largest at {share[peak]:.0%} of the uniform "
        f"entropy, {short(float(functional[peak] / functional[0]))} times its value at flat attention, and exceeds the "
        f"outer one at {int((functional > outer).sum())} of {len(outer)} factors.",
    ]


Lines = Mapping[str, tuple[str, str, Any]]
MOMENTS: Lines = {
    "M1": ("‖M₁‖, mean token", OBJECTS["value"], GAUSS_NEWTON),
    "M2": ("‖M₂‖, covariance", OBJECTS["query"], GAUSS_NEWTON),
    "M3": ("‖M₃‖ along the loss gradient", OBJECTS["query"], FUNCTIONAL),
}
BLOCK_NAMES: Lines = {
    "outer VV": ("outer VV, built on M₁", OBJECTS["value"], GAUSS_NEWTON),
    "outer QQ": ("outer QQ, built on M₂", OBJECTS["query"], GAUSS_NEWTON),
    "functional QQ": ("functional QQ, built on M₃", OBJECTS["query"], FUNCTIONAL),
}
_LEAST_SHARE, _MOST_SHARE = 1e-6, 1e4
_FLATTEST, _SHARPEST = 0.9997, 0.003
_TICKS = (0.999, 0.99, 0.9, 0.5, 0.1, 0.01)
"""On a logit axis: what happens sits at both its ends."""


def draw_strata(result: Result) -> Figure:
    """Moments and block norms, each relative to its value at the flattest attention, with entropy on the axis.

    A thin line is one draw; the thick one joins the medians over draws.
    """
    entropy = curve(result, "entropy", "share_of_uniform")
    with panels(2, width=4.8, height=4.0, sharex=True, sharey=True) as (figure, (left, right)):
        for axes, lines, title in (
            (left, MOMENTS, "Moments of the attention rows"),
            (right, BLOCK_NAMES, "Blocks of the Hessian"),
        ):
            _lines(axes, entropy, {name: curve(result, name) for name in lines}, lines)
            axes.set_title(title)
            axes.set_xlabel("entropy / log L (1: uniform, 0: one-hot)")
        left.set_ylabel("norm / norm at flat attention")
    return figure


def _lines(axes: Axes, entropy: np.ndarray, values: Mapping[str, np.ndarray], lines: Lines) -> None:
    log_axis(axes, "y")
    for quantity, (label, colour, style) in lines.items():
        relative = values[quantity] / values[quantity][:, :1]
        for own_entropy, own in zip(entropy, relative, strict=True):
            axes.plot(own_entropy, own, color=colour, linewidth=0.6, alpha=0.35)
        # Near one-hot attention single draws underflow, which drags every mean down with them.
        axes.plot(
            np.median(entropy, axis=0),
            np.median(relative, axis=0),
            color=colour,
            linestyle=style,
            linewidth=2.4,
            label=label,
        )
    axes.set_xscale("logit")
    axes.set_xlim(_FLATTEST, _SHARPEST)
    axes.xaxis.set_major_locator(FixedLocator(_TICKS))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(_LEAST_SHARE, _MOST_SHARE)
    axes.legend(loc="upper left")


STRATA_CAPTION = (
    "From uniform attention (left) to one-hot attention (right), by multiplying the scores; both ends of the "
    "axis are stretched. Thick lines are medians "
    "over draws, thin ones single draws; norms below a millionth are cut off, and so is attention that is sharper "
    "still. The value block follows the mean token, the query block the covariance and the third moment, which vanish "
    "when attention looks at one token only."
)


QUERY, VALUE = "full QQ", "outer VV"
"""The query and the value block; the value block has no functional part."""


def temperatures(result: Result) -> np.ndarray:
    """The temperatures that were measured, highest first."""
    return np.unique(numbers(result.rows(), "temperature"))[::-1]


def path(result: Result, quantity: str, field: str = "value") -> np.ndarray:
    """A quantity by draw (rows) and temperature (columns, highest first)."""
    return curve(result, quantity, field, along="temperature")[:, ::-1]


def middle(values: np.ndarray) -> np.ndarray:
    """The median over draws, a temperature at a time: near one-hot attention single draws underflow to zero."""
    return np.median(values, axis=0)


def path_sentences(result: Result) -> list[str]:
    """What becomes of attention and of the derivative of softmax, of both blocks, and of their ratio."""
    hot = temperatures(result)
    share = path(result, "entropy", "share_of_uniform").mean(0)
    slope, query, value = (middle(path(result, name)) for name in ("derivative", QUERY, VALUE))
    peak = int(query.argmax())
    with np.errstate(divide="ignore"):
        ratio = value / query
    larger = {side: "value" if ratio[at] > 1 else "query" for side, at in _places(ratio).items()}
    if larger["hot"] == larger["cold"] != larger["least"]:
        verdict = f"the {larger['hot']} block is the larger one at both ends, the {larger['least']} block in between"
    else:
        verdict = (
            f"the {larger['hot']} block is the larger one at the hot end, the {larger['cold']} block at the cold one"
        )
    return [
        f"From temperature {short(hot[0])} to {short(hot[-1])} attention goes from {share[0]:.0%} to {share[-1]:.1%} "
        "of the uniform entropy, and the derivative of softmax (without its factor 1/t) falls to "
        f"{short(slope[-1] / slope.max())} of its largest norm.",
        f"The query block is largest at temperature {short(hot[peak])}, with attention at {share[peak]:.0%} of the "
        f"uniform entropy; it has {short(query[0] / query[peak])} of that norm at the hot end and "
        f"{short(query[-1] / query[peak])} at the cold end. The value block is multiplied by "
        f"{short(value[-1] / value[0])} from end to end.",
        f"The value block is {_times(ratio[0])} times the query block at the hot end, {_times(ratio.min())} times "
        f"where it is least (temperature {short(hot[ratio.argmin()])}) and {_times(ratio[-1])} times at the cold end "
        f"(medians of {len(path(result, QUERY))} draws): {verdict}.",
    ]


def _times(ratio: float) -> str:
    return short(float(ratio)) if ratio < _IMMENSE else f"more than {power_of_ten(np.log10(_IMMENSE))}"


def _places(ratio: np.ndarray) -> dict[str, int]:
    return {"hot": 0, "least": int(ratio.argmin()), "cold": len(ratio) - 1}


_IMMENSE = 1e12
"""Larger ratios are reported as a bound."""


PATH_BLOCKS: dict[str, tuple[str, str, Any]] = {
    "outer VV": ("value block", OBJECTS["value"], GAUSS_NEWTON),
    "outer QQ": ("query block, outer product", OBJECTS["query"], GAUSS_NEWTON),
    "functional QQ": ("query block, functional", OBJECTS["query"], FUNCTIONAL),
}
SHAPES: dict[tuple[str, str], tuple[str, str, Any]] = {
    ("entropy", "share_of_uniform"): ("entropy / log L (1: uniform)", INK, GAUSS_NEWTON),
    ("derivative", "value"): ("norm of the softmax derivative", PURPLE, FUNCTIONAL),
}
FRAMES = 9
"""Positions of the slider, evenly along the path."""

_LEAST = 1e-6
"""Norms are drawn down to this share of the largest one; towards one-hot attention the query block goes on falling."""
_ROOM = 1e3
"""How far the axis goes beyond the largest median: room for single draws and for the legend."""


def draw_path(result: Result) -> Figure:
    """Shape of attention, and norms of the blocks, against the temperature; from hot on the left to cold."""
    hot = temperatures(result)
    with panels(2, width=4.8, height=3.9) as (figure, (left, right)):
        for (quantity, field), (label, colour, style) in SHAPES.items():
            _band(left, hot, path(result, quantity, field), (label, colour, style), np.mean)
        left.set_ylim(0, 1.05)
        left.set_title("Attention and the derivative of softmax")
        left.set_ylabel("mean over rows")
        left.legend(loc="upper right")
        _blocks(right, result)
        right.set_title("Blocks of the Hessian")
        right.legend(loc="upper left")
        for axes in (left, right):
            _temperature_axis(axes, hot)
    return figure


def _blocks(axes: Axes, result: Result) -> None:
    hot = temperatures(result)
    for quantity, style in PATH_BLOCKS.items():
        _band(axes, hot, path(result, quantity), style, None)
    log_axis(axes, "y")
    top = max(float(middle(path(result, quantity)).max()) for quantity in PATH_BLOCKS)
    axes.set_ylim(_LEAST * top, _ROOM * top)
    axes.set_ylabel("norm (loss / weight²)")


def _band(axes: Axes, hot: np.ndarray, values: np.ndarray, style: tuple[str, str, Any], mean: Any) -> None:
    label, colour, dashes = style
    axes.fill_between(hot, values.min(0), values.max(0), color=colour, alpha=0.18, linewidth=0)
    line = middle(values) if mean is None else mean(values, axis=0)
    axes.plot(hot, np.where(line > 0, line, np.nan), color=colour, linestyle=dashes, linewidth=2.2, label=label)


def _temperature_axis(axes: Axes, hot: np.ndarray) -> None:
    log_axis(axes, "x")
    axes.set_xlim(hot[0] * 1.05, hot[-1] / 1.05)
    axes.set_xlabel("temperature (left hot, right cold)")


def draw_frame(result: Result, cell: FinishedCell, scale: float) -> Figure:
    """Attention, the derivative of softmax and the place on the path, at one temperature of the first draw."""
    arrays, hot = cell.measurement.arrays, float(cell.parameters["temperature"] or 0)
    with panels(3, width=4.0, height=4.1) as (figure, (attention, derivative, blocks)):
        _map(figure, attention, arrays["attention"], "cividis", (0.0, 1.0), "attention weight")
        attention.set(xlabel="key token", ylabel="query token")
        attention.set_title("Attention matrix")
        _map(figure, derivative, arrays["derivative"], "PuOr_r", (-scale, scale), "derivative")
        derivative.set(xlabel="score of token", ylabel="weight of token")
        derivative.set_title("Softmax derivative, first row")
        _blocks(blocks, result)
        _temperature_axis(blocks, temperatures(result))
        blocks.axvline(hot, color=INK, linewidth=2)
        blocks.set_title("Blocks of the Hessian")
        blocks.legend(loc="upper left")
    return figure


def _map(figure: Figure, axes: Axes, values: np.ndarray, colours: str, ends: tuple[float, float], label: str) -> None:
    """A matrix on a colour scale that is the same in all frames."""
    image = axes.imshow(values, cmap=colours, vmin=ends[0], vmax=ends[1], interpolation="nearest")
    axes.grid(visible=False)
    ticks = range(0, len(values), 2)
    axes.set_xticks(ticks, [str(n + 1) for n in ticks])
    axes.set_yticks(ticks, [str(n + 1) for n in ticks])
    axes.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", pad=0.03, aspect=30)
    bar.set_ticks([ends[0], sum(ends) / 2, ends[1]])
    bar.ax.xaxis.set_major_formatter(lambda value, _: f"{value:.2g}".replace("-", "−"))
    bar.set_label(label)


PATH_CAPTIONS = {
    "path": "One attention layer while the temperature that divides its scores falls. Lines are means (of norms: "
    "medians) over draws of the weights, bands reach from the smallest to the largest draw. The derivative of softmax "
    "is diag(a) − a aᵀ for a row a of the attention matrix, without the factor 1 / temperature; norms below a "
    "millionth of the largest are cut off.",
    "frame": "The first of these draws at one temperature (its entropy is its own, not the mean above): the attention "
    "matrix, the derivative of softmax at its first row, and the place on the path of all draws (upright line).",
}


def draw_temperatures(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The whole path, then its frames."""
    hot = temperatures(result)
    shown = np.unique(np.linspace(0, len(hot) - 1, min(FRAMES, len(hot))).round().astype(int))
    first = result.cells[0].parameters["seed"]
    cells = {cell.parameters["temperature"]: cell for cell in result.cells if cell.parameters["seed"] == first}
    chosen = [cells[float(hot[n])] for n in shown]
    scale = max(float(np.abs(cell.measurement.arrays["derivative"]).max()) for cell in chosen)
    frames = [
        ResultPicture(
            f"frame-{n + 1}", draw_frame(result, cell, scale), PATH_CAPTIONS["frame"], frame=_frame_in_words(cell)
        )
        for n, cell in enumerate(chosen)
    ]
    return [ResultPicture("path", draw_path(result), PATH_CAPTIONS["path"]), *frames]


def _frame_in_words(cell: FinishedCell) -> str:
    entropy = next(row for row in cell.measurement.rows if row["quantity"] == "entropy")
    share = float(entropy["share_of_uniform"] or 0)
    hot = short(float(cell.parameters["temperature"] or 0))
    return f"temperature {hot}, {share:.0%} of the uniform entropy in this draw"


PRESENTATIONS = {
    "moment_strata": Presentation(Findings(strata_sentences), captioned({"strata": (draw_strata, STRATA_CAPTION)})),
    "temperature_path": Presentation(Findings(path_sentences), draw_temperatures),
}
