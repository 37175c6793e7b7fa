"""Powers of the weights as heat maps: counted, near zero, at the drawn weights."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hessianlab.figures.weight_powers.findings import Power, agrees, powers
from hessianlab.figures.weight_powers.measure import BLOCKS, PARTS, WEIGHTS
from hessianlab.plots.picture import Picture
from hessianlab.plots.style import MUTED, RED, panels, readable_on
from hessianlab.results import Result

TITLES = {"counted": "counted", "small": "weight → 0", "drawn": "drawn weights"}
NAMES = {"Q": "query", "K": "key", "V": "value"}
_SCALE = Normalize(-1.0, 2.5)
_SHORT = 0.4
"""Inches of a line of the map."""


def draw(result: Result, part: str) -> Figure:
    """Three maps of one part: what counting gives, and what is measured in the limit and at the drawn weights."""
    with panels(len(TITLES), width=3.6, height=_SHORT * len(BLOCKS) + 1.2, sharey=True) as (figure, all_axes):
        for axes, (where, title) in zip(all_axes, TITLES.items(), strict=True):
            measured = where != "counted"
            for power in powers(result, where if measured else "small"):
                if power.part == part:
                    _cell(axes, power, where if measured else None)
            _frame(axes)
            axes.set_title(f"{part.capitalize()}: {title}", pad=22)
        all_axes[0].set_ylabel("block")
    return figure


def _cell(axes: Axes, power: Power, where: str | None) -> None:
    """The counted power, or the measured one, framed where the two differ."""
    x, y = WEIGHTS.index(power.weight), BLOCKS.index(power.block)
    value = power.counted if where is None else power.mean
    if value is None:
        axes.text(x, y, "zero", ha="center", va="center", color=MUTED)
    else:
        colour = mpl.colormaps["cividis"](_SCALE(value))
        axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=colour, linewidth=0))
        text = f"{value:d}" if where is None else f"{value + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")
        axes.text(x, y, text, ha="center", va="center", color=readable_on(colour))
    if where is not None and not agrees(power, where):
        axes.add_patch(Rectangle((x - 0.45, y - 0.43), 0.9, 0.86, fill=False, edgecolor=RED, linewidth=2.6))


def _frame(axes: Axes) -> None:
    axes.set_xlim(-0.5, len(WEIGHTS) - 0.5)
    axes.set_ylim(len(BLOCKS) - 0.5, -0.5)
    axes.set_xticks(range(len(WEIGHTS)), [NAMES[weight] for weight in WEIGHTS])
    axes.set_yticks(range(len(BLOCKS)), BLOCKS)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("power of this weight matrix")


CAPTION = (
    "The power with which the norm of each block of the {part} part grows when one weight matrix is multiplied by a "
    "factor. First, what counting the factors in the formulas gives; then the measured slope as the matrix goes to "
    "zero and at the weights as drawn (means over draws). A frame marks a power that differs from the counted one; "
    "“zero” is a block that vanishes."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """One picture a part."""
    return [Picture(part, draw(result, part), CAPTION.format(part=_words(part))) for part in PARTS]


def _words(part: str) -> str:
    return {"outer": "outer-product"}.get(part, part)
