"""Figure 4 of the paper: histograms of the entries of the query and value blocks, with softmax and without."""

from __future__ import annotations

from hessianlab.experiments.statistics import geometric_mean
from hessianlab.plots.charts import draw_histograms
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.results import Findings, Result
from hessianlab.results.table import block_ratios, choices, numbers, select, short, span


def sentences(result: Result) -> list[str]:
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


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """One panel a kind of attention."""
    return [ResultPicture("histogram", draw_histograms(result), CAPTION)]


PRESENTATIONS = {"fig4": Presentation(Findings(sentences), draw_all)}
