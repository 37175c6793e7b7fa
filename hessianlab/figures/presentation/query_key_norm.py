"""Norms of queries and keys, and sinks: the ratio of the blocks, the powers that are left, and the moments."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import geometric_mean, log_log_slope, numbers, select
from hessianlab.figures.query_key_norm import NORMS
from hessianlab.plots.picture import Presentation, captioned
from hessianlab.plots.style import FUNCTIONAL, GAUSS_NEWTON, INK, OBJECTS, PURPLE, log_axis, panel
from hessianlab.results import Findings, Result
from hessianlab.wording import several, short

LARGEST_SMALL_SCALE = 0.03
"""Powers are fitted to tokens of this scale and below."""


def at_each(result: Result, quantity: str, **wanted: str) -> tuple[np.ndarray, np.ndarray]:
    """Places along a scan, ascending, and geometric means over draws of a quantity there; without a sink left out."""
    rows = [row for row in select(result, quantity=quantity, **wanted) if row["at"] is not None]
    places = np.unique(numbers(rows, "at"))
    return places, np.array([geometric_mean([row["value"] for row in rows if row["at"] == at]) for at in places])


def ratio(result: Result, part: str, **wanted: str) -> tuple[np.ndarray, np.ndarray]:
    """The norm of the query block over that of the value block, along a scan."""
    places, queries = at_each(result, f"{part} QQ", **wanted)
    return places, queries / at_each(result, "outer VV", **wanted)[1]


def fitted_power(result: Result, quantity: str, norm: str) -> float:
    """The power of the tokens' scale in a block, at small scales."""
    places, values = at_each(result, quantity, scan="tokens", norm=norm)
    small = places <= LARGEST_SMALL_SCALE
    found = log_log_slope(places[small], values[small])
    assert found is not None
    return float(found)


def without_sink(result: Result, quantity: str) -> float:
    """The geometric mean over draws of a quantity of the layer without a sink."""
    rows = [row for row in select(result, scan="sink", quantity=quantity) if row["at"] is None]
    return float(geometric_mean([row["value"] for row in rows]))


def norm_sentences(result: Result) -> list[str]:
    """The gap along the scale of the tokens, the powers, the gains, and the sink."""
    scales, plain = ratio(result, "outer", scan="tokens", norm="none")
    _, normed = ratio(result, "outer", scan="tokens", norm="both")
    blocks = ("outer QQ", "functional QQ", "outer VV")
    fitted = {
        norm: several([f"{fitted_power(result, block, norm):.2f}" for block in blocks]) for norm in ("none", "both")
    }
    gap = (
        f"From tokens of scale {scales[0]:g} to {scales[-1]:g} the Gauss-Newton block of queries goes from "
        f"{short(float(plain[0]))} to {short(float(plain[-1]))} of that of values without norms, and from "
        f"{short(float(normed[0]))} to {short(float(normed[-1]))} with norms of queries and keys; the powers of "
        "small tokens in the Gauss-Newton and functional block of queries and in that of values are "
        f"{fitted['none']} without norms and {fitted['both']} with both."
    )
    gains, found = ratio(result, "outer", scan="gain")
    best = int(found.argmax())
    gained = (
        f"A gain g on both norms moves the ratio from {short(float(found[0]))} (g = {gains[0]:g}) to "
        f"{short(float(found[best]))} (g = {gains[best]:g}) and {short(float(found[-1]))} (g = {gains[-1]:g})."
    )
    logits, taken = at_each(result, "sink", scan="sink")
    sunk = {name: at_each(result, name, scan="sink")[1][-1] for name in _MOMENTS}
    left = {name: short(float(value / without_sink(result, name))) for name, value in sunk.items()}
    sink = (
        f"A sink of logit {logits[-1]:g} takes {taken[-1]:.0%} of the weight. It leaves "
        f"{left['first moment']} of the first moment and {left['second moment']} of the second, {left['outer VV']} of "
        f"the Gauss-Newton block of values and {left['outer QQ']} of that of queries."
    )
    return [gap, gained, sink]


_LINES = {
    "none": (INK, "no norm", 1, (10, -10), "left"),
    "queries": (OBJECTS["query"], "norm of queries", 2, (-8, 5), "right"),
    "keys": (OBJECTS["key"], "norm of keys", 0, (6, -16), "left"),
    "both": (PURPLE, "norms of both: the same at every scale", 0, (0, 8), "left"),
}
"""Colour of a line, its name, and where that stands: the point of the line, the offset from it, and its side."""


def draw_ratio(result: Result) -> Figure:
    """The ratio of the two blocks along the scale of the tokens."""
    with panel() as (figure, axes):
        for norm in NORMS:
            colour, name, point, beside, side = _LINES[norm]
            places, values = ratio(result, "outer", scan="tokens", norm=norm)
            axes.plot(places, values, marker="o", color=colour)
            _name_line(axes, name, (places[point], values[point]), beside, colour, ha=side)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set_xscale("log")
        axes.set_yscale("log")
        log_axis(axes, "x")
        log_axis(axes, "y")
        axes.set_xlabel("scale of the tokens")
        axes.set_ylabel("‖QQ‖ / ‖VV‖, Gauss-Newton")
    return figure


def _name_line(
    axes: Axes, name: str, at: tuple[float, float], beside: tuple[float, float], colour: str, **place: Any
) -> None:
    axes.annotate(name, at, beside, textcoords="offset points", color=colour, annotation_clip=False, **place)


def draw_gain(result: Result) -> Figure:
    """Both parts of the query block over the value block, along the gain."""
    with panel() as (figure, axes):
        for part, dash in (("outer", GAUSS_NEWTON), ("functional", FUNCTIONAL)):
            name = {"outer": "Gauss-Newton", "functional": "functional"}[part]
            axes.plot(*ratio(result, part, scan="gain"), linestyle=dash, marker="o", color=OBJECTS["query"], label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("gain of both norms")
        axes.set_ylabel("‖QQ‖ / ‖VV‖")
        axes.legend()
    return figure


_MOMENTS = {
    "first moment": ("‖M₁‖", OBJECTS["value"], FUNCTIONAL, -6),
    "outer VV": ("‖VV‖", OBJECTS["value"], GAUSS_NEWTON, 0),
    "second moment": ("tr M₂", OBJECTS["query"], FUNCTIONAL, 7),
    "outer QQ": ("‖QQ‖", OBJECTS["query"], GAUSS_NEWTON, 0),
}


def draw_sink(result: Result) -> Figure:
    """Moments and blocks relative to those without a sink, along its logit."""
    with panel() as (figure, axes):
        for quantity, (label, colour, dash, beside) in _MOMENTS.items():
            logits, values = at_each(result, quantity, scan="sink")
            left = values / without_sink(result, quantity)
            axes.plot(logits, left, linestyle=dash, marker="o", color=colour)
            _name_line(axes, label, (logits[-1], left[-1]), (7, beside), colour, va="center")
        axes.set_yscale("log")
        axes.set_xlabel("logit of the sink")
        axes.set_ylabel("relative to no sink")
        axes.set_xlim(right=9.6)
    return figure


_PICTURES = {
    "ratio": (
        draw_ratio,
        "Norm of the Gauss-Newton block of queries over that of values, along the scale of the tokens, for a softmax "
        "layer whose queries, keys, both or neither are divided by their root mean square; geometric means over draws.",
    ),
    "gain": (
        draw_gain,
        "The same ratio for both parts of the query block, with norms of queries and keys, along their common gain.",
    ),
    "sink": (
        draw_sink,
        "Moments of a row of attention and the blocks built on them, relative to the layer without a sink, along the "
        "logit of the sink: a column of scores that takes weight and has no value.",
    ),
}

PRESENTATIONS = {"query_key_norm": Presentation(Findings(norm_sentences), captioned(_PICTURES))}
