"""Recorded trainings beneath the race of two learning rates: whole models instead of a slice of two lengths."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.claims.trained import Effect, StudyRecord
from hessianlab.plots.style import INK, MUTED, log_axis, panels
from hessianlab.report.argument import ANSWERING, INTERVENING, optimiser_gaps
from hessianlab.report.contents import Contents
from hessianlab.results import Series

EQUAL, BY_CURVATURE, ADAM = "SGD", "SGD, rates by curvature", "Adam"
"""Arms of the study of rates, as it calls them."""

_NAME: Any = {"textcoords": "offset points", "annotation_clip": False}

_NAMES: Mapping[tuple[str, str], Any] = {
    ("softmax", "no norm"): {"xytext": (-22, 12), "ha": "left"},
    ("softmax", "pre-norm"): {"xytext": (0, -14), "ha": "left"},
    ("sigmoid", "no norm"): {"xytext": (-8, -3), "ha": "right"},
    ("sigmoid", "pre-norm"): {"xytext": (-8, 13), "ha": "left"},
    ("linear", "no norm"): {"xytext": (7, -3), "ha": "left"},
    ("linear", "pre-norm"): {"xytext": (6, -11), "ha": "left"},
}
"""Where the name of a design stands beside its mark."""


def recorded_runs(_contents: Contents) -> Figure | None:
    """Losses of SGD with rates by curvature, and of Adam, less those of SGD; Adam's lead by the spread of blocks."""
    chart = StudyRecord(INTERVENING).chart
    series = {one.name: one for one in chart.panels[0].series} if chart else {}
    gaps = optimiser_gaps(StudyRecord(ANSWERING))
    if not {EQUAL, BY_CURVATURE, ADAM} <= set(series) or any(gap.mean is None for gap in gaps.values()):
        return None
    with panels(2, width=3.6, height=2.5) as (figure, (runs, designs)):
        _draw_runs(runs, series)
        _draw_designs(designs, gaps)
    return figure


def _draw_runs(axes: Axes, series: Mapping[str, Series]) -> None:
    """Losses minus that of SGD with equal rates, over steps."""
    base = series[EQUAL]
    for name, words, colour, lift in ((BY_CURVATURE, "SGD, a rate per block", INK, 9), (ADAM, "Adam", MUTED, -17)):
        lead = [y - z for y, z in zip(series[name].mean, base.mean, strict=True)]
        axes.plot(base.x, lead, color=colour)
        axes.annotate(words, (base.x[-1], lead[-1]), (0, lift), **_NAME, ha="right", weight="bold", color=colour)
    axes.axhline(0, color=MUTED, linewidth=1, zorder=0)
    axes.margins(y=0.16)
    axes.set_xlabel("steps")
    axes.set_title("Loss minus that of SGD (nats)")


def _draw_designs(axes: Axes, gaps: Mapping[tuple[str, str], Effect]) -> None:
    """Adam's lead by the ratio of the largest to the smallest block curvature: a mark for every design."""
    found = StudyRecord(ANSWERING)
    log_axis(axes, "x")
    for (kind, norm), gap in gaps.items():
        ratio, lead = exp(found.mean(f"characters: log block spread, {kind}, {norm}")), float(gap.mean or 0)
        axes.plot([ratio, ratio], [gap.low, gap.high], color=INK, linewidth=1.4)
        axes.plot([ratio], [lead], "o" if norm == "no norm" else "s", color=INK, markersize=6)
        axes.annotate(f"{kind}, {norm}", (ratio, lead), **_NAME, **_NAMES[kind, norm], color=MUTED)
    axes.axhline(0, color=MUTED, linewidth=1, zorder=0)
    axes.set(xlim=(4, 4e4), ylim=(-0.03, 0.25))
    axes.set_xlabel("largest over smallest block curvature")
    axes.set_title("Lead of Adam over SGD (nats)")
