"""What separates the blocks, softmax or any activation with a(0) != 0; and their growth with the token scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import block_ratios, choices, geometric_mean, numbers, select
from hessianlab.plots.charts import draw_cell, frame_cells
from hessianlab.plots.picture import Presentation, captioned
from hessianlab.plots.style import (
    FUNCTIONAL,
    GAUSS_NEWTON,
    INK,
    KINDS,
    MUTED,
    NONE,
    OBJECTS,
    OFFSET,
    ZERO,
    log_axis,
    panels,
)
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.wording import activation_in_words, several, short, span

SEPARATION_FACTOR = 10.0
"""Blocks differ in scale when their root mean square entries differ by more than this factor."""

PLACES = {"transformer": "In the one-block Transformer", "layer": "In a layer alone"}


def ratios(result: Result, place: str) -> dict[str, float]:
    """Root mean square entry of the value block over that of the query block, by activation, largest first.

    The geometric mean over draws; both blocks have the same size, so that their norms have the same ratio.
    """
    names = choices(result, "activation")
    found = {name: geometric_mean(drawn_ratios(result, place, name)) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def drawn_ratios(result: Result, place: str, activation: str) -> np.ndarray:
    """The same ratio, draw by draw."""
    return block_ratios(result, "rms", place=place, activation=activation)


def kinds(result: Result) -> dict[str, str]:
    """`OFFSET`, `ZERO` or `NONE` by activation, from the measured weight at zero scores."""
    found = {}
    for name in choices(result, "activation"):
        start = select(result, activation=name)[0]["at_zero"]
        found[name] = NONE if start is None else OFFSET if start != 0 else ZERO
    return found


def a_zero_decides(result: Result, place: str) -> bool | None:
    """Whether exactly the activations with a(0) != 0 separate the blocks; None if only one kind was measured."""
    found, kind = ratios(result, place), kinds(result)
    groups = {which: [found[name] for name in found if kind[name] == which] for which in (OFFSET, ZERO)}
    if not all(groups.values()):
        return None
    return min(groups[OFFSET]) > SEPARATION_FACTOR and all(
        1 / SEPARATION_FACTOR <= ratio <= SEPARATION_FACTOR for ratio in groups[ZERO]
    )


def offset_sentences(result: Result) -> list[str]:
    """Whether a(0) decides, how sigmoid compares with softmax, and what rows divided by their sum do."""
    places = choices(result, "place")
    sentences = [_verdict(result, place) for place in places[:1]]
    compared = " ".join(filter(None, (_sigmoid(result, place) for place in places)))
    others = " ".join(_verdict(result, place) for place in places[1:])
    return [*sentences, *filter(None, (compared, others))]


def _verdict(result: Result, place: str) -> str:
    found, kind = ratios(result, place), kinds(result)

    def listed(which: str) -> str:
        return several([f"{activation_in_words(name)} ({short(found[name])})" for name in found if kind[name] == which])

    decides = a_zero_decides(result, place)
    groups = [f"with {which}: {listed(which)}" for which in (OFFSET, ZERO, NONE) if which in kind.values()]
    start = f"{PLACES[place]} the entries of the value block over those of the query block (root mean squares), "
    if decides is None:
        return f"{start}{'; '.join(groups)}: one kind alone decides nothing."
    verdict = (
        f"what separates the blocks (more than {SEPARATION_FACTOR:g}-fold) is not softmax but a(0) ≠ 0"
        if decides
        else f"whether a(0) is zero does not decide here whether blocks differ more than {SEPARATION_FACTOR:g}-fold"
    )
    apart = [
        activation_in_words(name)
        for name in found
        if kind[name] == NONE and not 1 / SEPARATION_FACTOR <= found[name] <= SEPARATION_FACTOR
    ]
    rest = f"; without a value at zero scores they are apart too: {several(apart)}" if apart else ""
    return f"{start}{'; '.join(groups)}: {verdict}{rest}."


def _sigmoid(result: Result, place: str) -> str:
    names = choices(result, "activation")
    if "softmax" not in names or "sigmoid" not in names:
        return ""
    more = drawn_ratios(result, place, "sigmoid") / drawn_ratios(result, place, "softmax")
    return (
        f"{PLACES[place]} sigmoid separates the two blocks {short(geometric_mean(more))} times as much as softmax "
        f"({span(more)} over {len(more)} draws)."
    )


BLOCKS = {
    "value": (OBJECTS["value"], "s", 0.22),
    "query": (OBJECTS["query"], "o", 0.0),
    "key": (OBJECTS["key"], "^", -0.22),
}
GROUPS = KINDS

_HEADING, _GAP = 0.75, 0.35
"""Lines above and between the groups, in heights of a line."""


def draw_ratios(result: Result) -> Figure:
    """Value block over query block, a line per activation: the geometric mean and the range of the draws."""
    places, kind = choices(result, "place"), kinds(result)
    order = list(ratios(result, places[0]))
    heights = _heights(order, kind)
    drawn = {(place, name): drawn_ratios(result, place, name) for place in places for name in order}
    low, high = np.log10([f(found) for f in (np.min, np.max) for found in drawn.values()]).reshape(2, -1)
    ends = min(low.min(), 0.0), max(high.max(), 0.0)
    with panels(len(places), width=5.0, height=0.3 * max(heights.values()) + 1.5) as (figure, all_axes):
        for axes, place in zip(all_axes, places, strict=True):
            for name, y in heights.items():
                if name in GROUPS:
                    _heading(axes, y, name)
                else:
                    _ratio(axes, y, drawn[place, name], kind[name])
            _ratio_axes(axes, heights, ends)
            axes.set_title(PLACES.get(place, place))
    return figure


def _heading(axes: Axes, y: float, kind: str) -> None:
    style: Any = {"color": GROUPS[kind][0], "weight": "bold", "va": "center", "ha": "right"}
    axes.annotate(kind, (0, y), (-4, 0), ("axes fraction", "data"), "offset points", annotation_clip=False, **style)


def _heights(order: list[str], kind: Mapping[str, str]) -> dict[str, float]:
    """Where each line stands, from the top down; a group's own name is its heading."""
    heights: dict[str, float] = {}
    y = 0.0
    for group in GROUPS:
        own = [name for name in order if kind[name] == group]
        if own:
            heights[group] = y + _HEADING
            heights |= {name: y + _HEADING + 1 + n for n, name in enumerate(own)}
            y += _HEADING + len(own) + _GAP
    return heights


def _ratio(axes: Axes, y: float, found: np.ndarray, kind: str) -> None:
    colour, marker = GROUPS[kind]
    middle = geometric_mean(found)
    axes.plot([found.min(), found.max()], [y, y], color=colour, linewidth=1.6)
    axes.plot([middle], [y], marker, color=colour, markersize=7)
    axes.annotate(
        f"{short(middle)}×",
        (found.max(), y),
        (7, 0),
        textcoords="offset points",
        va="center",
        color=INK,
        annotation_clip=False,
    )


def _ratio_axes(axes: Axes, heights: Mapping[str, float], ends: tuple[float, float]) -> None:
    log_axis(axes, "x", most=6)
    low, high = ends
    axes.set_xlim(10 ** (low - 0.1 * (high - low)), 10 ** (high + 0.25 * (high - low)))
    axes.axvline(1, color=MUTED, linewidth=1, zorder=0)
    lines = {name: y for name, y in heights.items() if name not in GROUPS}
    axes.set_yticks(list(lines.values()), [activation_in_words(name) for name in lines])
    axes.set_ylim(max(heights.values()) + 0.7, min(heights.values()) - 0.7)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("value block / query block (1: alike)")


def draw_sizes(result: Result) -> Figure:
    """Root mean square entry of every diagonal block; points are geometric means, lines the range of the draws."""
    places = choices(result, "place")
    order = list(ratios(result, places[0]))[::-1]
    with panels(len(places), width=5.0, height=4.4, sharey=True) as (figure, all_axes):
        for axes, place in zip(all_axes, places, strict=True):
            for y, name in enumerate(order):
                for block in BLOCKS:
                    _size(
                        axes,
                        y,
                        block,
                        numbers(select(result, place=place, activation=name, block=block, part="full"), "rms"),
                    )
            log_axis(axes, "x", most=5)
            axes.set_yticks(range(len(order)), [activation_in_words(name) for name in order])
            axes.set_ylim(-0.6, len(order) - 0.4)
            axes.set_title(PLACES.get(place, place))
            axes.set_xlabel("root mean square entry (loss / weight²)")
        for block, (colour, marker, _) in BLOCKS.items():
            all_axes[0].plot([], [], marker, color=colour, label=f"{block} block")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _size(axes: Axes, y: int, block: str, found: np.ndarray) -> None:
    colour, marker, shift = BLOCKS[block]
    axes.plot([found.min(), found.max()], [y + shift] * 2, color=colour, linewidth=1.4)
    axes.plot([geometric_mean(found)], [y + shift], marker, color=colour, markersize=6)


OFFSET_CAPTIONS = {
    "ratio": "The same weights and the same data; only the activation of the attention scores changes. How many times "
    "larger the entries of the value block are than those of the query block (root mean squares): marks are geometric "
    "means over draws of the weights, bars reach from the smallest to the largest draw. Activations are grouped by "
    "a(0), the weight that a token gets whose score is zero; those that divide a row by its own sum (“ReLU / row "
    "sum”, “scores / row sum”) have no such value. In “sigmoid(t − log L)” t is a score and L the length of the "
    "sequence.",
    "sizes": "The blocks behind these ratios: root mean square entry of each diagonal block; marks are geometric means "
    "over draws of the weights, bars reach from the smallest to the largest draw.",
}


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


def growth_sentences(result: Result) -> list[str]:
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
    ("outer", "QQ"): (OBJECTS["query"], GAUSS_NEWTON),
    ("functional", "QQ"): (OBJECTS["query"], FUNCTIONAL),
    ("outer", "VV"): (OBJECTS["value"], GAUSS_NEWTON),
}
_EXPONENT_SCALE = Normalize(0, 8)
CURVE_ACTIVATIONS = ("softmax", "sigmoid", "linear", "relu_normalised")


def draw_exponents(result: Result) -> Figure:
    """Measured exponents as a table for each part, one line per activation, one column per block."""
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
                    mark = "" if agree[name, part, block] else " ✗"
                    mean = float(found.mean()) if found.size else None
                    text = f"zero{mark}" if mean is None else f"{mean:.2f}{mark}"
                    draw_cell(axes, (x, y), mean, text, _EXPONENT_SCALE)
            frame_cells(axes, columns, [activation_in_words(n) for n in names])
            axes.set_title(f"{part.capitalize()} part", pad=12)
    return figure


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


GROWTH_CAPTIONS = {
    "exponents": "Multiply the tokens by a small σ: each block's norm goes as σ to the power in its cell, here as "
    "measured (mean over draws), with the loss gradient held; “zero” is a block that vanishes. A cross would mark a "
    "power that counting does not predict.",
    "curves": "The norms behind four rows of the table: lines are means over draws, bands the smallest to the largest "
    "draw, and powers are fitted in the shaded range.",
}


PRESENTATIONS = {
    "activation_offset": Presentation(
        Findings(offset_sentences),
        captioned({"ratio": (draw_ratios, OFFSET_CAPTIONS["ratio"]), "sizes": (draw_sizes, OFFSET_CAPTIONS["sizes"])}),
    ),
    "activation_growth": Presentation(
        Findings(growth_sentences),
        captioned(
            {
                "exponents": (draw_exponents, GROWTH_CAPTIONS["exponents"]),
                "curves": (draw_curves, GROWTH_CAPTIONS["curves"]),
            }
        ),
    ),
}
