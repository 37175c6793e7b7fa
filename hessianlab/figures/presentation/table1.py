"""Table 1 with what was printed and what was measured."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import GREEN, GRID, INK, MUTED, RED, panels
from hessianlab.results import Findings, Result, Row, Scalar
from hessianlab.results.table import numbers, select, short
from hessianlab.wording import scientific

TOLERANCE = 1e-6
"""A power agrees with the printed one within this."""


def deviations(result: Result) -> np.ndarray:
    """Measured minus printed power, of every block and draw."""
    rows = [row for row in result.rows() if row.get("printed") is not None]
    return numbers(rows, "value") - numbers(rows, "printed")


def sentences(result: Result) -> list[str]:
    """Powers, factorisations, and what a rotation of the tokens does with softmax and without."""
    off = np.abs(deviations(result))
    gaps = numbers(select(result, quantity="factorisation gap"), "value")
    turned = {
        kind: numbers([r for r in select(result, quantity="change under rotation") if _softmax(r) == kind], "value")
        for kind in (False, True)
    }
    sentences = [
        f"{int((off < TOLERANCE).sum())} of {len(off)} measured powers of Sigma and Omega are the printed ones; the "
        f"largest difference is {short(float(off.max()))}.",
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
PARTS = {"outer": "Outer product", "functional": "Functional"}
_TOPS = (0.97, 0.46)
_LINE = 0.1


def draw(result: Result) -> Figure:
    """Printed and measured powers of Sigma and Omega: a panel a model, its parts below each other."""
    models = list(dict.fromkeys(str(row["model"]) for row in result.rows() if row.get("printed") is not None))
    with panels(len(models), width=4.2, height=3.2) as (figure, all_axes):
        for axes, model in zip(all_axes, models, strict=True):
            axes.set_axis_off()
            axes.set(xlim=(0, 1), ylim=(0, 1))
            axes.set_title(model[:1].upper() + model[1:])
            for top, part in zip(_TOPS, PARTS, strict=True):
                axes.plot([0, 1], [top, top], color=GRID, linewidth=1, clip_on=False)
                _entry(axes, top - 0.07, PARTS[part], select(result, model=model, part=part))
    return figure


def _entry(axes: Axes, y: float, title: str, rows: list[dict[str, Scalar]]) -> None:
    powers = {name: [r for r in rows if r["quantity"] == f"power of {name}"] for name in _SYMBOLS}
    printed = {name: int(numbers(found, "printed")[0]) for name, found in powers.items()}
    measured = {name: numbers(found, "value") for name, found in powers.items()}
    agrees = all(bool((np.abs(measured[n] - printed[n]) < TOLERANCE).all()) for n in powers)
    gap = numbers([r for r in rows if r["quantity"] == "factorisation gap"], "value").max()
    shown = ",  ".join(f"{_SYMBOLS[n]} {_range(values)}" for n, values in measured.items())
    blocks = len({r["block"] for r in powers["Sigma"]})
    verdict, colour = ("as printed", GREEN) if agrees else ("not as printed", RED)
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


CAPTION = (
    "Powers of the data's covariance Σ and of the residual's correlation with the data Ω in every block of a linear "
    "MLP and of linear attention: as printed, and as measured by scaling the data. The gap is that of the block "
    "written in Σ, Ω and the weights alone."
)


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The one picture."""
    return [ResultPicture("table", draw(result), CAPTION)]


PRESENTATIONS = {"table1": Presentation(Findings(sentences), draw_all)}
