"""Growth with sigma in sentences and pictures: Figures 3 and 5 to 8 of the paper, and exponents by depth."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.growth.drawing import growth_picture
from hessianlab.growth.exponents import (
    FitRange,
    GrowthFindings,
    Slope,
    agreement,
    exponent_fits,
    fit_slope,
    growth_sentences,
    series_in_words,
    slope_in_words,
)
from hessianlab.growth.layout import blocks_of, layers_by_depth, panel_a_depth, parts_of_blocks, unfolded_first
from hessianlab.growth.reference import Reference
from hessianlab.growth.series import GrowthSeries, growth_series
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import BLUE, INK, MUTED, PURPLE, log_axis, panels
from hessianlab.results import Findings, Result
from hessianlab.wording import several, short, superscript
from hessianlens.layer import linear_attention_growth, linear_mlp_growth


def sentences_with_one_line(result: Result) -> list[str]:
    """As of every growth figure, and the slopes of the lines through everything, which the paper fits with norms."""
    lines = [fit for fit in exponent_fits(result) if fit.range.name == "all"]
    slopes = "; ".join(f"{series_in_words(fit)} {slope_in_words(fit)}" for fit in lines)
    line = [f"The paper fits one straight line to all σ; such a line has the slope: {slopes}."] if lines else []
    return [*growth_sentences(result), *line]


def draw_parts(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """The query and the value block, a line for each part; a row for each range of sigma."""
    return [growth_picture("growth", result, parts_of_blocks(result), reference)]


def draw_layers(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """One picture per block: a row for each depth, the three parts side by side, a line for each layer."""
    return [
        growth_picture(block, result, layers_by_depth(result, block), reference, folded)
        for block, folded in unfolded_first(blocks_of(result)).items()
    ]


def draw_depths(result: Result, reference: Reference | None = None) -> list[ResultPicture]:
    """A panel for each depth, a line for each layer."""
    return [growth_picture("growth", result, panel_a_depth(result), reference)]


FAMILIES = {"linear MLP": ("mlp", "full"), "linear attention": ("query", "outer")}
"""Block and part that stand for a family, of the last layer; an MLP's block has no functional part."""

PREDICTED = {"linear MLP": linear_mlp_growth, "linear attention": linear_attention_growth}


class DepthExponent(NamedTuple):
    """The exponent of a family at one depth."""

    family: str
    depth: int
    slope: Slope
    predicted: int
    agrees: bool | None
    series: GrowthSeries


def depth_exponents(result: Result) -> list[DepthExponent]:
    """Every family and depth: the block of the last layer over the whole range of scales."""
    found = []
    everywhere = FitRange("all", 0.0, float("inf"))
    for family, wanted in FAMILIES.items():
        for key, series in growth_series(result).items():
            if key.last and (key.block, key.part) == wanted:
                slope, predicted = fit_slope(series, everywhere), PREDICTED[family](key.depth)
                agrees = agreement(slope, series.vanishes, predicted)
                found.append(DepthExponent(family, key.depth, slope, predicted, agrees, series))
    return found


def depth_sentences(result: Result) -> list[str]:
    """The exponents, what a further layer does to them, and what that means for a block's size."""
    every = depth_exponents(result)
    by_family = {family: [e for e in every if e.family == family] for family in FAMILIES}
    text = "; ".join(
        f"{family}, depth {several([str(e.depth) for e in own])}: {several([_measured(e) for e in own])} "
        f"(predicted {several([str(e.predicted) for e in own])})"
        for family, own in by_family.items()
    )
    decided = [e for e in every if e.agrees is not None]
    verdict = (
        f"{sum(bool(e.agrees) for e in decided)} of {len(decided)} agree with the prediction"
        if decided
        else "These draws are too few to decide whether they agree"
    )
    left = f", {len(every) - len(decided)} cannot be decided" if 0 < len(decided) < len(every) else ""
    sentences = [f"Power of the data's scale in the block of the last layer. {text}. {verdict}{left}."]
    for family, own in by_family.items():
        steps = [
            float(later.slope.measured or 0) / earlier.slope.measured
            for earlier, later in pairwise(own)
            if earlier.slope.measured
        ]
        deepest = own[-1]
        if steps and deepest.slope.measured is not None:
            sentences.append(
                f"{family[0].upper()}{family[1:]}: a further layer multiplies the power by "
                f"{several([f'{step:.2f}' for step in steps])}; doubling the data's scale multiplies the block at "
                f"depth {deepest.depth} by {short(2**deepest.slope.measured)}."
            )
    return sentences


def _measured(found: DepthExponent) -> str:
    return "none" if found.slope.measured is None else f"{found.slope.measured:.2f}"


FAMILY_STYLES = {"linear MLP": (PURPLE, "o"), "linear attention": (BLUE, "s")}
_LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
"""Dashes by depth; deeper models begin again."""


def draw_depth_growth(result: Result) -> Figure:
    """The norms over the scale, each relative to its own at the largest one; and the powers over depth."""
    found = depth_exponents(result)
    with panels(2, width=4.8, height=4.2) as (figure, (curves, powers)):
        _curves(curves, found)
        _powers(powers, found)
    return figure


def _curves(axes: Axes, found: list[DepthExponent]) -> None:
    for one in found:
        colour, marker = FAMILY_STYLES[one.family]
        series = one.series
        centre = np.exp(np.log(np.where(series.values > 0, series.values, np.nan)).mean(0))
        style: Any = {"color": colour, "linestyle": _LINES[(one.depth - 1) % len(_LINES)]}
        axes.plot(series.sigma, centre / centre[-1], marker=marker, markersize=3.5, **style)
    _name_curves(axes, found)
    log_axis(axes, "x")
    log_axis(axes, "y", most=7)
    sigma = found[0].series.sigma
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 1.0, 2.0) if sigma[0] * 0.99 <= tick <= sigma[-1] * 1.01]
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1, color=MUTED, linewidth=0.8, zorder=0.5)
    axes.set_title(f"Size of a block, relative to σ = {sigma[-1]:g}")
    axes.set_xlabel("scale of the data σ")
    axes.set_ylabel("norm / norm at the right end")


def _name_curves(axes: Axes, found: list[DepthExponent]) -> None:
    """Names at the left end, below each attention curve and above those of the MLPs, which coincide."""
    place: Any = {"textcoords": "offset points", "size": 9}
    for one in found:
        colour, _ = FAMILY_STYLES[one.family]
        first = np.exp(np.log(one.series.values[:, [0, -1]]).mean(0))
        at = one.series.sigma[0], first[0] / first[1]
        if one.family != "linear MLP":
            layers = f"{one.depth} layer{'s' if one.depth > 1 else ''}"
            axes.annotate(f"{layers}: σ{superscript(one.predicted)}", at, (6, -4), color=colour, va="top", **place)
        elif one.depth == 1:
            axes.annotate(f"MLPs: σ{superscript(one.predicted)}", at, (0, 7), color=colour, **place)
    axes.margins(y=0.1)


def _powers(axes: Axes, found: list[DepthExponent]) -> None:
    depths = sorted({one.depth for one in found})
    for family, (colour, marker) in FAMILY_STYLES.items():
        counted = [PREDICTED[family](depth) for depth in depths]
        axes.plot(depths, counted, color=colour, linestyle=(0, (4, 3)), label=f"{family}, counted")
        own = [one for one in found if one.family == family and one.slope.measured is not None]
        middle = np.array([one.slope.measured for one in own], dtype=float)
        # Fewer than two draws have no interval.
        ends = np.array([[one.slope.low, one.slope.high] for one in own], dtype=float)
        error = np.nan_to_num(np.abs(ends.T - middle))
        axes.errorbar([one.depth for one in own], middle, error, fmt="none", color=colour, capsize=4)
        label = f"{family}, measured"
        axes.plot([one.depth for one in own], middle, marker, color=colour, markersize=7, label=label)
        for one, value in zip(own, middle, strict=True):
            place: Any = {"textcoords": "offset points", "color": INK, "va": "top"}
            axes.annotate(f"{value:.1f}", (one.depth, value), (9, -4), **place)
    axes.set_yscale("log")
    predictions = sorted({one.predicted for one in found})
    axes.set_yticks(predictions, [str(p) for p in predictions])
    axes.minorticks_off()
    axes.set_ylim(1.2, 2 * max(predictions))
    axes.set_xticks(depths)
    axes.set_xlim(depths[0] - 0.4, depths[-1] + 0.4)
    axes.set_title("Its power of σ by depth")
    axes.set_xlabel("layers")
    axes.set_ylabel("power of σ")
    axes.legend(loc="upper left")


DEPTH_CAPTION = (
    "How the block of the last layer grows when the data are multiplied by σ: linear MLPs of {depths} layers (purple, "
    "the layer's own matrix) and as many chained linear attention layers without softmax, MLP and skip connections "
    "(blue, the query matrix, outer product), both under the square loss. First, geometric means over {repeats} draws "
    "of weights and data, each divided by its value at the right end; every attention layer uses its input three "
    "times, an MLP layer once. Then the fitted powers with their 95 % interval, and 2 and 2 · 3ᴰ as counted (dashes)."
)


def draw_depth(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The one picture."""
    depths = ", ".join(str(depth) for depth in result.config["layers"])
    return [
        ResultPicture(
            "depth", draw_depth_growth(result), DEPTH_CAPTION.format(depths=depths, repeats=result.config["repeats"])
        )
    ]


FINDINGS = GrowthFindings(growth_sentences)

PRESENTATIONS = {
    "fig3a": Presentation(FINDINGS, draw_parts),
    "fig3b": Presentation(GrowthFindings(sentences_with_one_line), draw_parts),
    "fig5": Presentation(FINDINGS, draw_parts),
    "fig6": Presentation(FINDINGS, draw_layers),
    "fig7": Presentation(FINDINGS, draw_layers),
    "fig8": Presentation(FINDINGS, draw_depths),
    "depth_growth": Presentation(Findings(depth_sentences), draw_depth),
}
