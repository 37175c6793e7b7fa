"""The picture of a claim: its curves over one axis."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from hessianlab.claims.finding import Curves
from hessianlab.plots.style import BLUE, GREEN, ORANGE, PURPLE, RED, SKY, log_axis, panel

_COLOURS = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY)
_LINES = ("-", "--", "-.", ":")
_DPI = 150


def claim_figure(curves: Curves, title: str) -> Figure:
    """Every curve in its own colour and dashes, so that curves on top of each other still show.

    >>> figure = claim_figure(Curves("x", "y", {"line": ((1.0, 10.0), (2.0, 3.0))}, log_x=True), "P1")
    >>> figure.axes[0].get_xscale(), figure.axes[0].get_title(loc="left")
    ('log', 'P1')
    """
    with panel(5.6, 3.9) as (figure, axes):
        for n, (name, (x, y)) in enumerate(curves.curves.items()):
            line = _LINES[n % len(_LINES)]
            axes.plot(x, y, line, marker="o", markersize=2.5, color=_COLOURS[n % len(_COLOURS)], label=name)
        for which, logarithmic in (("x", curves.log_x), ("y", curves.log_y)):
            if logarithmic:
                log_axis(axes, which)
        axes.set(xlabel=curves.x_label, ylabel=curves.y_label)
        axes.set_title(title)
        if len(curves.curves) > 1:
            axes.legend()
    return figure


def write_claim_figure(curves: Curves, title: str, path: Path) -> Path:
    """The picture as a PNG file."""
    claim_figure(curves, title).savefig(path, dpi=_DPI)
    return path
