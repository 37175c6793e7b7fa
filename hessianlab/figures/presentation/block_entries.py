"""Figures 1 and 4 of the paper: maps of the Hessian, and histograms of the entries of the query and value blocks."""

from __future__ import annotations

from math import log10

import numpy as np
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import block_ratios, choices, geometric_mean, numbers, select
from hessianlab.plots.charts import block_map, draw_histograms, log_colour_bar, log_scale
from hessianlab.plots.picture import Presentation, captioned
from hessianlab.plots.style import panel
from hessianlab.results import Findings, Parameters, Result
from hessianlab.wording import short, span


def fig1_sentences(result: Result) -> list[str]:
    """The two-orders claim, what dominates the query block, and how far two ways to the same matrix agree."""
    median, rms = block_ratios(result, kind="blocks"), block_ratios(result, "rms", kind="blocks")
    by_part = {
        part: geometric_mean(numbers(select(result, kind="blocks", block="query", part=part), "norm"))
        for part in ("outer", "functional")
    }
    query = geometric_mean(numbers(select(result, kind="blocks", block="query", part="full"), "median"))
    value = geometric_mean(numbers(select(result, kind="blocks", block="value", part="full"), "median"))
    sentences = [
        f"The median absolute entry of the value block is {short(geometric_mean(median))} times that of the query "
        f"block ({span(median)} over {len(median)} draws of the weights), {log10(geometric_mean(median)):.1f} orders "
        f"of magnitude; by root mean square it is {short(geometric_mean(rms))} times.",
        f"The medians themselves are {short(query)} (query) and {short(value)} (value); the functional part of the "
        f"query block has {short(by_part['functional'] / by_part['outer'])} times the norm of its outer-product part.",
    ]
    for row in select(result, block="attention"):
        sentences.append(
            "The attention part of the map, in closed form, and the same entries from matrix-free products differ by "
            f"{short(row['gap'])} of the largest entry at most."
        )
    return sentences


NAMES = {
    "whole": ("embed", "pos", "Q", "K", "V", "O", "in", "in bias", "out", "out bias", "unembed", "unembed bias"),
    "attention": ("Q", "K", "V", "O"),
}
_LABELLED = 0.035
"""Blocks with a smaller share of the side have no room for a label."""

_LEAST = 0.1
"""Percent of the map below the colour scale: few, since the small query and key blocks are the point of the figure."""

TITLES = {"whole": "Hessian of all weights", "attention": "Hessian of the attention weights"}


def draw_map(result: Result, which: str) -> Figure:
    """One of the two maps of Figure 1: "whole" or "attention"."""
    cell = next(c for c in result.cells if which in c.measurement.arrays)
    arrays = cell.measurement.arrays
    logs, tile = arrays[which], int(arrays[f"{which}_tile"])
    sizes = [int(size) for size in arrays[f"{which}_sizes"]]
    large = which == "whole"
    with panel(*((6.6, 7.4) if large else (4.6, 5.4))) as (figure, axes):
        labels = [
            name if size >= _LABELLED * sum(sizes) else "" for name, size in zip(NAMES[which], sizes, strict=True)
        ]
        image = block_map(axes, logs, labels, sizes, log_scale([logs], _LEAST), line=0.6 if large else 1.2)
        axes.tick_params(labelsize=9.5 if large else 11)
        if large:
            axes.tick_params(axis="x", rotation=90)
        axes.set_title(TITLES[which])
        pooled = f", largest of {tile} × {tile} entries" if tile > 1 else ""
        log_colour_bar(figure, axes, image, f"|entry| (loss / weight²){pooled}")
        axes.set_xlabel(_caption(cell.parameters, logs))
    return figure


def _caption(parameters: Parameters, logs: np.ndarray) -> str:
    """What a reader must know to read the map."""
    blank = "; blank: exactly zero" if not np.isfinite(logs).all() else ""
    return f"d = {parameters['d_model']}, {parameters['sequences']} sequences, cross-entropy{blank}"


CAPTIONS = {
    "whole": "Every second derivative of the loss with respect to a pair of weights, on a logarithmic colour scale; "
    "each tile shows its largest entry. White lines separate the weight matrices: embedding, positions, queries Q, "
    "keys K, values V, output O, MLP in and out, unembedding (biases between them). Dark bands: queries and keys.",
    "attention": "The part that belongs to the attention layer's four weight matrices, from the closed form.",
    "histogram": "Absolute entries of the query and of the value block, all draws of the weights together; thin lines "
    "mark the medians.",
}


def fig4_sentences(result: Result) -> list[str]:
    """Value over query for every kind of attention, and which block softmax changes."""
    sentences = []
    for attention in choices(result, "attention"):
        ratios = block_ratios(result, attention=attention)
        sentences.append(
            f"With {attention} attention the median absolute entry of the value block is "
            f"{short(geometric_mean(ratios))} times that of the query block ({span(ratios)} over {len(ratios)} draws)."
        )
    if {"softmax", "linear"} <= set(choices(result, "attention")):
        changes = {block: _change(result, block) for block in ("query", "value")}
        sentences.append(
            f"Taking softmax away multiplies the median of the query block by {short(changes['query'])} and that of "
            f"the value block by {short(changes['value'])}."
        )
    return sentences


def _change(result: Result, block: str) -> float:
    linear, softmax = (
        geometric_mean(numbers(select(result, attention=a, block=block, part="full"), "median"))
        for a in ("linear", "softmax")
    )
    return linear / softmax


CAPTION = (
    "Absolute entries of the query and of the value block with softmax, and with the softmax left out, all "
    "draws of the weights together; thin lines mark the medians."
)


_FIG1 = {
    "whole": (lambda result: draw_map(result, "whole"), CAPTIONS["whole"]),
    "attention": (lambda result: draw_map(result, "attention"), CAPTIONS["attention"]),
    "histogram": (draw_histograms, CAPTIONS["histogram"]),
}

PRESENTATIONS = {
    "fig1": Presentation(Findings(fig1_sentences), captioned(_FIG1)),
    "fig4": Presentation(Findings(fig4_sentences), captioned({"histogram": (draw_histograms, CAPTION)})),
}
