"""Histograms of the entries of the query and value blocks, with softmax and without."""

from __future__ import annotations

from hessianlab.plots.histogram import draw_histograms
from hessianlab.plots.picture import Picture
from hessianlab.results import Result

CAPTION = (
    "Absolute entries of the query and of the value block with softmax, and with the softmax left out, all "
    "draws of the weights together; thin lines mark the medians."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """One panel a kind of attention."""
    return [Picture("histogram", draw_histograms(result), CAPTION)]
