"""Powers of the data and of the weights, printed or counted, against measured ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hessianlab.experiments.statistics import numbers, select
from hessianlab.figures.powers import BLOCKS, PARTS, WEIGHTS
from hessianlab.plots.charts import draw_cell, frame_cells
from hessianlab.plots.picture import Presentation, ResultPicture, captioned
from hessianlab.plots.style import GRID, INK, MUTED, PURPLE, panels
from hessianlab.results import Findings, Result, Row, Scalar
from hessianlab.wording import scientific, several, short

TABLE1_TOLERANCE = 1e-6
"""A power agrees with the printed one within this."""


def deviations(result: Result) -> np.ndarray:
    """Measured minus printed power, of every block and draw."""
    rows = [row for row in result.rows() if row.get("printed") is not None]
    return numbers(rows, "value") - numbers(rows, "printed")


def table1_sentences(result: Result) -> list[str]:
    """Powers, factorisations, and what a rotation of the tokens does with softmax and without."""
    off = np.abs(deviations(result))
    gaps = numbers(select(result, quantity="factorisation gap"), "value")
    turned = {
        kind: numbers([r for r in select(result, quantity="change under rotation") if _softmax(r) == kind], "value")
        for kind in (False, True)
    }
    sentences = [
        f"{int((off < TABLE1_TOLERANCE).sum())} of {len(off)} measured powers of Sigma and Omega are the printed ones; "
        f"the largest difference is {short(float(off.max()))}.",
        "Written in Sigma, Omega and the weights alone, the blocks of both linear models come out with a relative gap "
        f"of {short(float(gaps.max()))} at most.",
    ]
    if len(turned[True]):
        sentences.append(
            "A rotation of the tokens that leaves Sigma and Omega as they are changes the linear models' blocks by "
            f"{short(float(turned[False].max()))} of their norm, those of softmax attention by "
            f"{short(float(turned[True].min()))} or more."
        )
    return sentences


def _softmax(row: Row) -> bool:
    return "softmax" in str(row["model"])


_SYMBOLS = {"Sigma": "Σ", "Omega": "Ω"}
_POWERS = str.maketrans("23456789", "²³⁴⁵⁶⁷⁸⁹")
PART_TITLES = {"outer": "Outer product", "functional": "Functional"}
_TOPS = (0.97, 0.46)
_LINE = 0.1


def draw_table1(result: Result) -> Figure:
    """Printed and measured powers of Sigma and Omega: a panel per model, its parts below each other."""
    models = list(dict.fromkeys(str(row["model"]) for row in result.rows() if row.get("printed") is not None))
    with panels(len(models), width=4.2, height=3.2) as (figure, all_axes):
        for axes, model in zip(all_axes, models, strict=True):
            axes.set_axis_off()
            axes.set(xlim=(0, 1), ylim=(0, 1))
            axes.set_title(model[:1].upper() + model[1:])
            for top, part in zip(_TOPS, PART_TITLES, strict=True):
                axes.plot([0, 1], [top, top], color=GRID, linewidth=1, clip_on=False)
                _entry(axes, top - 0.07, PART_TITLES[part], select(result, model=model, part=part))
    return figure


def _entry(axes: Axes, y: float, title: str, rows: list[dict[str, Scalar]]) -> None:
    powers = {name: [r for r in rows if r["quantity"] == f"power of {name}"] for name in _SYMBOLS}
    printed = {name: int(numbers(found, "printed")[0]) for name, found in powers.items()}
    measured = {name: numbers(found, "value") for name, found in powers.items()}
    agrees = all(bool((np.abs(measured[n] - printed[n]) < TABLE1_TOLERANCE).all()) for n in powers)
    gap = numbers([r for r in rows if r["quantity"] == "factorisation gap"], "value").max()
    shown = ",  ".join(f"{_SYMBOLS[n]} {_range(values)}" for n, values in measured.items())
    blocks = len({r["block"] for r in powers["Sigma"]})
    verdict, colour = ("as printed", INK) if agrees else ("not as printed", PURPLE)
    lines = (
        (f"{title}, printed: {_product(printed)}", INK),
        (f"measured powers:  {shown}", INK),
        (f"{verdict}, {blocks} block{'s' if blocks > 1 else ''}", colour),
        (f"factorisation gap {scientific(gap, 0)}", MUTED),
    )
    for number, (text, ink) in enumerate(lines):
        axes.text(0, y - number * _LINE, text, color=ink, va="center")


def _product(powers: dict[str, int]) -> str:
    """E.g. Omega Sigma."""
    factors = [_SYMBOLS[n] + (str(p).translate(_POWERS) if p > 1 else "") for n, p in powers.items() if p]
    return " ".join(reversed(factors))


def _range(values: np.ndarray) -> str:
    # Adding zero turns -0.000 into 0.000.
    low, high = (f"{round(v, 3) + 0.0:.3f}" for v in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


TABLE1_CAPTION = (
    "Powers of the data's covariance Σ and of the residual's correlation with the data Ω in every block of a linear "
    "MLP and of linear attention: as printed, and as measured by scaling the data. The gap is that of the block "
    "written in Σ, Ω and the weights alone."
)


WEIGHT_TOLERANCE = {"small": 0.05, "drawn": 0.1}
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


def measured_powers(result: Result, where: str) -> list[Power]:
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
    return power.off <= WEIGHT_TOLERANCE[where]


def weight_powers_sentences(result: Result) -> list[str]:
    """How many powers hold in the limit and at the drawn weights, which parts are exact, and what differs most."""
    small, drawn = measured_powers(result, "small"), measured_powers(result, "drawn")
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
        f"At the drawn weights {len(held)} of {len(drawn)} still are (within {WEIGHT_TOLERANCE['drawn']:g})"
        + (f", among them all of {several(exact)}." if exact else "."),
    ]
    moved = sorted((p for p in drawn if not agrees(p, "drawn")), key=lambda p: -p.off)[:3]
    if moved:
        sentence = "; ".join(
            f"{_NAMES[p.weight]} in {p.part} {p.block} (counted {p.counted}, measured "
            f"{'none' if p.mean is None else format(p.mean, '.2f').replace('-', '−')})"
            for p in moved
        )
        sentences.append(
            f"Farthest from the counted power there: {sentence}. A weight that is not small also moves the attention "
            "matrix or the residual, which no factor in front of a block shows."
        )
    return sentences


MAP_TITLES = {"counted": "counted", "small": "weight → 0", "drawn": "drawn weights"}
NAMES = {"Q": "query", "K": "key", "V": "value"}
_SCALE = Normalize(-1.0, 2.5)
_SHORT = 0.4
"""Inches of a line of the map."""


def draw_weight_powers(result: Result, part: str) -> Figure:
    """Three maps of one part: what counting gives, and what is measured in the limit and at the drawn weights."""
    with panels(len(MAP_TITLES), width=3.6, height=_SHORT * len(BLOCKS) + 1.2, sharey=True) as (figure, all_axes):
        for axes, (where, title) in zip(all_axes, MAP_TITLES.items(), strict=True):
            measured = where != "counted"
            for power in measured_powers(result, where if measured else "small"):
                if power.part == part:
                    _cell(axes, power, where if measured else None)
            frame_cells(axes, [NAMES[weight] for weight in WEIGHTS], BLOCKS)
            axes.set_xlabel("power of this weight matrix")
            axes.set_title(f"{part.capitalize()}: {title}", pad=22)
        all_axes[0].set_ylabel("block")
    return figure


def _cell(axes: Axes, power: Power, where: str | None) -> None:
    """The counted power, or the measured one, framed where the two differ."""
    x, y = WEIGHTS.index(power.weight), BLOCKS.index(power.block)
    value = power.counted if where is None else power.mean
    text = "zero"
    if value is not None:
        text = f"{value:d}" if where is None else f"{value + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")
    draw_cell(axes, (x, y), value, text, _SCALE)
    if where is not None and not agrees(power, where):
        axes.add_patch(Rectangle((x - 0.45, y - 0.43), 0.9, 0.86, fill=False, edgecolor=PURPLE, linewidth=2.6))


WEIGHT_CAPTION = (
    "The power with which the norm of each block of the {part} part grows when one weight matrix is multiplied by a "
    "factor. First, what counting the factors in the formulas gives; then the measured slope as the matrix goes to "
    "zero and at the weights as drawn (means over draws). A frame marks a power that differs from the counted one; "
    "“zero” is a block that vanishes."
)


def draw_all_weight_powers(result: Result, _reference: object = None) -> list[ResultPicture]:
    """One picture per part."""
    return [
        ResultPicture(part, draw_weight_powers(result, part), WEIGHT_CAPTION.format(part=_words(part)))
        for part in PARTS
    ]


def _words(part: str) -> str:
    return {"outer": "outer-product"}.get(part, part)


PRESENTATIONS = {
    "table1": Presentation(Findings(table1_sentences), captioned({"table": (draw_table1, TABLE1_CAPTION)})),
    "weight_powers": Presentation(Findings(weight_powers_sentences), draw_all_weight_powers),
}
