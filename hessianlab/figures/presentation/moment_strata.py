"""Moments and blocks from uniform to one-hot attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import BLUE, ORANGE, RED, log_axis, panels
from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short

BLOCKS = ("outer VV", "outer QQ", "functional QQ")


def curve(result: Result, quantity: str, field: str = "value") -> np.ndarray:
    """A quantity by draw (rows) and factor on the query weights (columns, ascending)."""
    rows = select(result, quantity=quantity)
    seeds, factors = numbers(rows, "seed"), numbers(rows, "factor")
    order = np.lexsort((factors, seeds))
    return numbers(rows, field)[order].reshape(len(np.unique(seeds)), -1)


def sentences(result: Result) -> list[str]:
    """How well moments rebuild blocks, and what is left of each block near one-hot attention."""
    gaps = max(numbers(select(result, quantity=name), "gap").max() for name in BLOCKS)
    share = curve(result, "entropy", "share_of_uniform").mean(0)
    sharpest = {name: curve(result, name)[:, -1] / curve(result, name)[:, 0] for name in BLOCKS}
    outer, functional = curve(result, "outer QQ").mean(0), curve(result, "functional QQ").mean(0)
    peak = int(functional.argmax())
    return [
        "Rebuilt from one attention moment each, the outer value block (M1), the outer query block (M2) and the "
        f"functional query block (M3) differ from the exact ones by {short(float(gaps))} of the norm of the whole "
        "Hessian at most: no more than rounding.",
        f"From the flattest attention (entropy {short(float(share[0]))} of uniform) to the sharpest "
        f"({short(float(share[-1]))}) the norm of the value block is multiplied by "
        f"{short(float(np.median(sharpest['outer VV'])))}, that of the outer query block by "
        f"{short(float(np.median(sharpest['outer QQ'])))} and that of the functional query block by "
        f"{short(float(np.median(sharpest['functional QQ'])))} (medians over draws).",
        f"The mean norm of the functional query block is largest at {share[peak]:.0%} of the uniform "
        f"entropy, {short(float(functional[peak] / functional[0]))} times its value at flat attention, and exceeds the "
        f"outer one at {int((functional > outer).sum())} of {len(outer)} factors.",
    ]


DASHES = (0, (4, 1.5))
Lines = Mapping[str, tuple[str, str, Any]]
MOMENTS: Lines = {
    "M1": ("‖M₁‖, mean token", RED, "-"),
    "M2": ("‖M₂‖, covariance", BLUE, "-"),
    "M3": ("‖M₃‖ along the loss gradient", ORANGE, DASHES),
}
BLOCK_NAMES: Lines = {
    "outer VV": ("outer VV, built on M₁", RED, "-"),
    "outer QQ": ("outer QQ, built on M₂", BLUE, "-"),
    "functional QQ": ("functional QQ, built on M₃", ORANGE, DASHES),
}
_LEAST, _MOST = 1e-6, 1e4
_FLATTEST, _SHARPEST = 0.9997, 0.003
_TICKS = (0.999, 0.99, 0.9, 0.5, 0.1, 0.01)
"""On a logit axis: what happens sits at both its ends."""


def draw(result: Result) -> Figure:
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
    axes.set_ylim(_LEAST, _MOST)
    axes.legend(loc="upper left")


CAPTION = (
    "From uniform attention (left) to one-hot attention (right), by multiplying the scores; both ends of the "
    "axis are stretched. Thick lines are medians "
    "over draws, thin ones single draws; norms below a millionth are cut off, and so is attention that is sharper "
    "still. The value block follows the mean token, the query block the covariance and the third moment, which vanish "
    "when attention looks at one token only."
)


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The one picture."""
    return [ResultPicture("strata", draw(result), CAPTION)]


PRESENTATIONS = {"moment_strata": Presentation(Findings(sentences), draw_all)}
