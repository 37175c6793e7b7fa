"""How figures look: one palette that works for colour-blind readers, on light and dark pages, as inline SVG."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import log10
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from hessianlab.wording import power_of_ten
from hessianlens.display import PALETTE as PALETTE

INK, MUTED, GRID, BLUE, ORANGE, GREEN, RED, PURPLE, SKY = (light for light, _ in PALETTE.values())

OBJECTS = {"query": BLUE, "key": GREEN, "value": RED}
"""One colour per object, in every figure, scene and page: Q blue, K green, V the dark orange of the palette, in which
a name can still be read on white."""

GAUSS_NEWTON, FUNCTIONAL = "-", (0, (4, 1.5))
"""Dashes of the parts: the Gauss-Newton part is solid, the functional part dashed, the Hessian itself thick."""
THICK = 3.6
"""Width in points of a line that is the Hessian itself."""

OFFSET, ZERO, NONE = "a(0) ≠ 0", "a(0) = 0", "no a(0)"
"""Kinds of activations: with a weight at zero scores, without, and those whose weights have no limit there."""
KINDS = {OFFSET: (PURPLE, "s"), ZERO: (INK, "o"), NONE: (SKY, "D")}
"""Colour and marker of the kinds of activations, none of them the colour of a weight."""

WIDTH, HEIGHT = 4.6, 3.5
"""Inches of one panel: about the width of a phone, so that its text stays readable there."""

_DPI = 160
"""Resolution of pictures inside a drawing: about one pixel per entry for heat maps of the default size."""

_RC: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "hessianlens",
}


@contextmanager
def panel(width: float = WIDTH, height: float = HEIGHT) -> Iterator[tuple[Figure, Axes]]:
    """One figure with one pair of axes, in the style of the page and without global state."""
    with mpl.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot()


def figure_style() -> AbstractContextManager[None]:
    """The style of every figure, for as long as the context lasts and without global state."""
    return mpl.rc_context(_RC)


@contextmanager
def panels(
    columns: int, rows: int = 1, width: float = WIDTH, height: float = HEIGHT, **sharing: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """One figure with several pairs of axes, row by row, each of the given size in inches.

    Args:
        columns: Panels side by side.
        rows: Panels on top of each other.
        width: Of one panel.
        height: Of one panel.
        **sharing: ``sharex`` and ``sharey`` as for matplotlib's `Figure.subplots`.
    """
    with figure_style():
        figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
        yield figure, list(figure.subplots(rows, columns, squeeze=False, **sharing).flat)


def readable_on(colour: Any) -> str:
    """Black or white, whichever stands out more on this colour: by a contrast of 4.58 at least.

    Neither belongs to the palette, so that text on a coloured cell stays as it is on a dark page.

    >>> readable_on("#ffffff"), readable_on("#123456")
    ('#000000', '#ffffff')
    """
    return "#000000" if luminance(colour) > _EVEN else "#ffffff"


_EVEN = (1.05 * 0.05) ** 0.5 - 0.05
"""The luminance on which black and white have the same contrast."""


def luminance(colour: Any) -> float:
    """Relative luminance of a colour, as the guidelines for accessible pages define it: 0 is black and 1 is white."""
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(colour)]
    return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])


def log_axis(axes: Axes, which: str, most: int = 6) -> None:
    """A logarithmic axis with a label at whole powers of ten, at most about `most` of them."""
    getattr(axes, f"set_{which}scale")("log")
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(LogLocator(base=10, numticks=most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(log10(value)) if value > 0 else ""))
    axis.set_minor_locator(NullLocator())


def to_svg(figure: Figure, name: str, description: str) -> str:
    """The figure as an inline SVG element that follows the page's fonts and colours.

    Args:
        figure: What to write.
        name: Unique on the page; ids inside the drawing are derived from it.
        description: Read out in place of the drawing.
    """
    svg = _drawn(figure)
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(\sid="|url\(#|href="#)', rf"\1{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", svg)
    svg = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--sans)", svg)
    svg = re.sub(r"font: (\w+) ([\d.]+px) [^;\"]*", r"font: \1 \2 var(--sans)", svg)
    for variable, (light, _) in PALETTE.items():
        svg = svg.replace(light, f"var(--{variable})")
    size = re.search(r'viewBox="0 0 ([\d.]+)', svg)
    assert size is not None
    width = round(float(size.group(1)) * 4 / 3)
    head = f'<svg role="img" aria-label="{description}" style="max-width:{width}px" '
    return head + re.sub(r'\s(width|height)="[\d.]+pt"', "", svg[len("<svg ") :], count=2)


def _drawn(figure: Figure) -> str:
    """The SVG document, transparent; drawn once, where `Figure.savefig` draws twice."""
    buffer, before = io.StringIO(), (figure.canvas, figure.dpi)
    with figure_style(), _transparent(figure):
        figure.dpi = _DPI
        FigureCanvasSVG(figure).print_svg(buffer, metadata={"Date": None})
    figure.canvas, figure.dpi = before
    return buffer.getvalue()


@contextmanager
def _transparent(figure: Figure) -> Iterator[None]:
    """Nothing behind the drawing and its axes."""
    patches = [figure.patch, *(axes.patch for axes in figure.axes)]
    before = [(patch.get_facecolor(), patch.get_edgecolor()) for patch in patches]
    for patch in patches:
        patch.set(facecolor="none", edgecolor="none")
    yield
    for patch, (face, edge) in zip(patches, before, strict=True):
        patch.set(facecolor=face, edgecolor=edge)
