"""Counted powers of the weights against measured ones."""

from __future__ import annotations

from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hessianlab.figures.measure.weight_powers import BLOCKS, PARTS, WEIGHTS
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import MUTED, RED, panels, readable_on
from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short
from hessianlab.wording import several

TOLERANCE = {"small": 0.05, "drawn": 0.1}
"""A measured power, in the mean over draws, agrees with the counted one within this."""

_NAMES = {"Q": "W_Q", "K": "W_K", "V": "W_V"}


class Power(NamedTuple):
    """A weight's power in a block: mean over draws (None: the block is zero in all), range, and what was counted."""

    part: str
    block: str
    weight: str
    mean: float | None
    low: float | None
    high: float | None
    counted: int | None

    @property
    def off(self) -> float:
        """Distance of the mean from the counted power: 0 if both say that the block vanishes, infinite if one does."""
        if self.mean is None or self.counted is None:
            return 0.0 if self.mean is None and self.counted is None else float("inf")
        return abs(self.mean - self.counted)


def powers(result: Result, where: str) -> list[Power]:
    """Every part, block and weight, at the drawn weights or near zero ("drawn", "small")."""
    found = []
    for part in PARTS:
        for block in BLOCKS:
            for weight in WEIGHTS:
                rows = select(result, where=where, part=part, block=block, weight=weight)
                slopes = numbers(rows, "power")
                mean, low, high = (float(f(slopes)) if slopes.size else None for f in (np.mean, np.min, np.max))
                counted = rows[0]["counted"]
                expected = None if counted is None else int(counted)
                found.append(Power(part, block, weight, mean, low, high, expected))
    return found


def agrees(power: Power, where: str) -> bool:
    """Whether a measured power is the counted one."""
    return power.off <= TOLERANCE[where]


def sentences(result: Result) -> list[str]:
    """How many powers hold in the limit and at the drawn weights, which parts are exact, and what differs most."""
    small, drawn = powers(result, "small"), powers(result, "drawn")
    held = [power for power in drawn if agrees(power, "drawn")]
    right = [power for power in small if agrees(power, "small")]
    worst = max((power.off for power in small if np.isfinite(power.off)), default=0.0)
    exact = [
        f"{_NAMES[weight]} in the {part} part"
        for part in PARTS
        for weight in WEIGHTS
        if all(agrees(power, "drawn") for power in drawn if (power.part, power.weight) == (part, weight))
    ]
    sentences = [
        f"As one weight matrix goes to zero, {len(right)} of {len(small)} powers of W_Q, W_K and W_V in the blocks are "
        f"those that counting the factors gives; the largest difference is {short(worst)}.",
        f"At the drawn weights {len(held)} of {len(drawn)} still are (within {TOLERANCE['drawn']:g})"
        + (f", among them all of {several(exact)}." if exact else "."),
    ]
    moved = sorted((p for p in drawn if not agrees(p, "drawn")), key=lambda p: -p.off)[:3]
    if moved:
        told = "; ".join(
            f"{_NAMES[p.weight]} in {p.part} {p.block} (counted {p.counted}, measured "
            f"{'none' if p.mean is None else format(p.mean, '.2f').replace('-', '−')})"
            for p in moved
        )
        sentences.append(
            f"Farthest from the counted power there: {told}. A weight that is not small also moves the attention "
            "matrix or the residual, which no factor in front of a block shows."
        )
    return sentences


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


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """One picture a part."""
    return [ResultPicture(part, draw(result, part), CAPTION.format(part=_words(part))) for part in PARTS]


def _words(part: str) -> str:
    return {"outer": "outer-product"}.get(part, part)


PRESENTATIONS = {"weight_powers": Presentation(Findings(sentences), draw_all)}
