"""Attention moments and blocks against the sharpness of attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from hessianlab.figures.moment_strata.findings import curve
from hessianlab.plots.picture import Picture
from hessianlab.plots.style import BLUE, ORANGE, RED, log_axis, panels
from hessianlab.results import Result

DASHES = (0, (4, 1.5))
Lines = Mapping[str, tuple[str, str, Any]]
MOMENTS: Lines = {
    "M1": ("‖M₁‖, mean token", RED, "-"),
    "M2": ("‖M₂‖, covariance", BLUE, "-"),
    "M3": ("‖M₃‖ along the loss gradient", ORANGE, DASHES),
}
BLOCKS: Lines = {
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
            (right, BLOCKS, "Blocks of the Hessian"),
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


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The one picture."""
    return [Picture("strata", draw(result), CAPTION)]
