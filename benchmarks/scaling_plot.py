"""The figure of `scaling`: measured time over that of a gradient above, counted operations below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.results import RESULTS, Result
from benchmarks.scaling import GRADIENT, KINDS

_LOOKS = {
    "norms": ("#0072b2", "o"),
    "product": ("#d55e00", "s"),
    "trace": ("#009e73", "^"),
    GRADIENT: ("#5d6875", "D"),
}
"""Okabe and Ito's colours, which colour-blind readers tell apart, and a marker of its own for each."""

_NAMES = {"norms": "nine norms", "product": "product", "trace": "trace", GRADIENT: "gradient"}
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dde2e8",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.4,
    "lines.markersize": 5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hessianlens",
}


def _curve(axes: Axes, values: Sequence[float], costs: Sequence[float], kind: str, exponent: float) -> None:
    colour, marker = _LOOKS[kind]
    x = np.asarray(values, dtype=float)
    middle = np.exp(np.mean(np.log(costs)) - exponent * np.mean(np.log(x)))
    axes.plot(x, costs, marker, color=colour, label=f"{_NAMES[kind]}: slope {exponent:.2f}")
    axes.plot(x, middle * x**exponent, "-", color=colour, alpha=0.8)


def _axes_of_sweep(axes: Axes, values: Sequence[int], label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.xaxis.set_major_locator(FixedLocator(values))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.42)  # room for the legend
    axes.legend(loc="upper left", handletextpad=0.2, borderaxespad=0.2)


def draw(result: Result) -> Figure:
    """Two rows, time and operations; a column a sweep; fitted power laws as lines."""
    sweeps = result.details["sweeps"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(3.6 * len(sweeps), 7), layout="constrained")
        panels = figure.subplots(2, len(sweeps), squeeze=False)
        for (name, sweep), top, bottom in zip(sweeps.items(), panels[0], panels[1], strict=True):
            for kind in KINDS:
                _curve(top, sweep["values"], sweep["costs"][kind]["relative"], kind, sweep["slopes"][kind]["relative"])
            for kind in (*KINDS, GRADIENT):
                costs, slopes = sweep["costs"][kind], sweep["slopes"][kind]
                _curve(bottom, sweep["values"], costs["operations"], kind, slopes["operations"])
            top.set_title(name, loc="left", fontweight="bold")
            for axes in (top, bottom):
                _axes_of_sweep(axes, sweep["values"], sweep["label"])
        panels[0][0].set_ylabel("time / time of one gradient")
        panels[1][0].set_ylabel("counted operations")
    return figure


def save(result: Result, folder: Path = RESULTS) -> list[Path]:
    """Write scaling.png and scaling.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = draw(result)
    paths = [folder / f"{result.name}.{kind}" for kind in ("png", "svg")]
    with mpl.rc_context(_STYLE):
        figure.savefig(paths[0], dpi=150)
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
