"""Table 1 with what was printed and what was measured."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlens.lab.figures.table1.findings import TOLERANCE
from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.style import GREEN, GRID, INK, MUTED, RED, panel
from hessianlens.lab.results import Result, Scalar
from hessianlens.lab.results.table import numbers, select
from hessianlens.lab.wording import scientific

_SYMBOLS = {"Sigma": r"\Sigma", "Omega": r"\Omega"}
PARTS = {"outer": "outer product $H_o$", "functional": "functional $H_f$"}
_COLUMNS = (0.28, 0.65)
_ROWS = (0.80, 0.36)
_LINE = 0.095


def draw(result: Result) -> Figure:
    """Printed and measured powers of Sigma and Omega, by model and part."""
    models = list(dict.fromkeys(str(row["model"]) for row in result.rows() if row.get("printed") is not None))
    with panel(7.0, 3.8) as (figure, axes):
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        for x, model in zip(_COLUMNS, models, strict=False):
            axes.text(x, 0.955, model, weight="bold", va="center")
            for y, part in zip(_ROWS, PARTS, strict=True):
                _entry(axes, x, y, select(result, model=model, part=part))
        for y, title in zip(_ROWS, PARTS.values(), strict=True):
            axes.text(0, y, title, va="center")
        for y in (0.89, 0.45):
            axes.plot([0, 1], [y, y], color=GRID, linewidth=1, clip_on=False)
        axes.set_title("Dependence on the data: printed and measured")
    return figure


def _entry(axes: Axes, x: float, y: float, rows: list[dict[str, Scalar]]) -> None:
    powers = {name: [r for r in rows if r["quantity"] == f"power of {name}"] for name in _SYMBOLS}
    printed = {name: int(numbers(found, "printed")[0]) for name, found in powers.items()}
    measured = {name: numbers(found, "value") for name, found in powers.items()}
    agrees = all(bool((np.abs(measured[n] - printed[n]) < TOLERANCE).all()) for n in powers)
    gap = numbers([r for r in rows if r["quantity"] == "factorisation gap"], "value").max()
    axes.text(x, y, f"printed  ${_product(printed)}$", color=MUTED, va="center")
    shown = "   ".join(f"${_SYMBOLS[n]}$ {_range(values)}" for n, values in measured.items())
    axes.text(x, y - _LINE, f"powers  {shown}", color=INK, va="center")
    blocks = len({r["block"] for r in powers["Sigma"]})
    verdict, colour = ("as printed", GREEN) if agrees else ("not as printed", RED)
    axes.text(x, y - 2 * _LINE, f"{verdict}, {blocks} block{'s' if blocks > 1 else ''}", color=colour, va="center")
    axes.text(x, y - 3 * _LINE, f"factorisation gap {scientific(gap, 0)}", color=MUTED, va="center", size=9)


def _product(powers: dict[str, int]) -> str:
    """E.g. Omega Sigma."""
    factors = [_SYMBOLS[n] + (f"^{p}" if p > 1 else "") for n, p in powers.items() if p]
    return r"\,".join(reversed(factors))


def _range(values: np.ndarray) -> str:
    # Adding zero turns -0.000 into 0.000.
    low, high = (f"{round(v, 3) + 0.0:.3f}" for v in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


CAPTION = (
    "Powers of the data's covariance Σ and of the residual's correlation with the data Ω in every block of a linear "
    "MLP and of linear attention: as printed, and as measured by scaling the data. The gap is that of the block "
    "written in Σ, Ω and the weights alone."
)


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The one picture."""
    return [Picture("table", draw(result), CAPTION)]
