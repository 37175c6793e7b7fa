"""Eigenvalues, sorted: signs, pairs and sizes at a glance."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hessianlens.lab.plots.style import BLUE, MUTED, ORANGE
from hessianlens.lab.wording import power_of_ten

_DECADES = 3
"""Decades below the largest eigenvalue that are shown logarithmically; smaller ones lie on a linear scale."""


def draw_spectrum(axes: Axes, values: np.ndarray, top: float) -> None:
    """Eigenvalues as dots by sign, with their counts; what is within rounding of zero is grey."""
    least = len(values) * np.finfo(values.dtype).eps * np.abs(values).max()
    index = np.arange(1, len(values) + 1)
    groups = {
        "positive": (values > least, BLUE, "o"),
        "negative": (values < -least, ORANGE, "v"),
        "zero": (np.abs(values) <= least, MUTED, "."),
    }
    for chosen, colour, marker in groups.values():
        axes.plot(index[chosen], values[chosen], marker, color=colour, markersize=3.6, markeredgewidth=0)
    counts = ", ".join(f"{int(chosen.sum())} {name}" for name, (chosen, _, _) in groups.items())
    axes.text(0.98, 0.03, counts, transform=axes.transAxes, ha="right", va="bottom", size=8.5, color=MUTED)
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=0)
    highest = int(np.ceil(np.log10(top)))
    threshold = 10.0 ** (highest - _DECADES)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.6)
    decades = [10.0**e for e in range(highest - _DECADES, highest + 1)]
    axes.set_yticks([-d for d in reversed(decades)] + [0.0, *decades])
    axes.yaxis.set_major_formatter(FuncFormatter(_signed_power))
    axes.yaxis.set_minor_locator(NullLocator())


def _signed_power(value: float, _: object = None) -> str:
    if value == 0:
        return "0"
    return ("−" if value < 0 else "") + power_of_ten(np.log10(abs(value)))
