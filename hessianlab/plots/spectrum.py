"""Eigenvalues, sorted: signs, pairs and sizes at a glance."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from hessianlab.plots.style import BLUE, INK, MUTED, ORANGE
from hessianlab.wording import power_of_ten

_DECADES = 3
"""Decades below the largest eigenvalue that are shown logarithmically; smaller ones lie on a linear scale."""


def draw_spectrum(axes: Axes, values: np.ndarray, top: float) -> None:
    """Eigenvalues as dots by sign, with their counts; what is within rounding of zero is grey."""
    least = _rounding(values)
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
    _signed_axis(axes, top)


def draw_mirrored(axes: Axes, values: np.ndarray, top: float, closed_form: np.ndarray | None = None) -> None:
    """Positive eigenvalues above zero and negative ones below, each from the largest on: pairs stand under each other.

    Args:
        axes: Where.
        values: All eigenvalues, in any order; those within rounding of zero are not drawn but counted.
        top: The largest absolute eigenvalue of all spectra on the same axis.
        closed_form: Eigenvalues from a formula, as a line.
    """
    least = _rounding(values)
    positive, negative = np.sort(values[values > least])[::-1], np.sort(values[values < -least])
    axes.plot(np.arange(1, len(positive) + 1), -positive, color=MUTED, linewidth=1.4, alpha=0.7)
    for found, colour, marker in ((positive, BLUE, "o"), (negative, ORANGE, "v")):
        axes.plot(np.arange(1, len(found) + 1), found, marker, color=colour, markersize=4.2, markeredgewidth=0)
    for found in () if closed_form is None else (np.sort(closed_form)[::-1], np.sort(closed_form)):
        kept = found[np.abs(found) > least]
        kept = kept[: len(kept) // 2]
        axes.plot(np.arange(1, len(kept) + 1), kept, color=INK, linewidth=0.9)
    zeros = len(values) - len(positive) - len(negative)
    above, below = f"{len(positive)} positive", f"{len(negative)} negative, {zeros} zero"
    axes.text(0.98, 0.97, above, transform=axes.transAxes, ha="right", va="top", size=9, color=MUTED)
    axes.text(0.98, 0.03, below, transform=axes.transAxes, ha="right", va="bottom", size=9, color=MUTED)
    if zeros == len(values):
        axes.text(0.5, 0.5, "exactly zero", transform=axes.transAxes, ha="center", va="bottom", color=MUTED)
    _signed_axis(axes, top)


def _rounding(values: np.ndarray) -> float:
    """What an eigenvalue of zero may look like."""
    return float(len(values) * np.finfo(values.dtype).eps * np.abs(values).max())


def _signed_axis(axes: Axes, top: float) -> None:
    """Logarithmic to both sides, linear near zero."""
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
