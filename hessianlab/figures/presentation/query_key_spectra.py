"""Where the negative eigenvalues of the query-key part come from."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.charts import draw_mirrored
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import panels
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.results.table import choices, numbers, select, short, span

NAMES = {"outer": "G", "functional": "H − G", "full": "H"}
"""Parts by the letters readers know: Hessian H and Gauss-Newton matrix G."""


def sentences(result: Result) -> list[str]:
    """Shares of negative eigenvalues by part with two matrices and with one; the pairs; what is left without them."""
    return [_shares(result), _pairs(result), _rest(result)]


def negative_share(result: Result, activation: str, matrices: str, part: str) -> float:
    """The share of the negative ones in the sum of all absolute eigenvalues, mean over draws."""
    rows = select(result, activation=activation, matrices=matrices, part=part)
    return float(numbers(rows, "negative_share").mean())


def _shares(result: Result) -> str:
    told = []
    for activation in choices(result, "activation"):
        found = {
            count: {part: negative_share(result, activation, count, part) for part in NAMES} for count in ("two", "one")
        }
        by_part = "; ".join(
            f"{name} {100 * found['two'][part]:.0f} % with two matrices, {100 * found['one'][part]:.0f} % with one"
            for part, name in NAMES.items()
        )
        told.append(f"With {activation}: {by_part}")
    outer = numbers(select(result, part="outer"), "negative")
    verdict = (
        "no negative eigenvalue comes from G, all of them from H − G"
        if outer.max() == 0
        else f"G itself has up to {outer.max():.0f} negative eigenvalues"
    )
    return f"Share of negative eigenvalues in the sum of all absolute ones. {'. '.join(told)}. So {verdict}."


def _pairs(result: Result) -> str:
    pairs, t_functional = select(result, part="pairs"), select(result, part="t_functional")
    as_predicted = sum(
        row["multiplicity"] == row["predicted_multiplicity"]
        and own["rank"] == row["predicted_nonzero"]
        and 2 * int(own["negative"] or 0) == own["rank"]
        for row, own in zip(pairs, t_functional, strict=True)
    )
    return (
        f"In {as_predicted} of {len(pairs)} draws the T-functional part, which only two matrices have, has exactly "
        "2 rank(B) d_K non-zero eigenvalues, each d_K times, half of them negative; they are symmetric about zero to "
        f"{short(float(numbers(pairs, 'pairing_gap').max()))} of the largest and equal the closed form to "
        f"{short(float(numbers(pairs, 'closed_form_gap').max()))}."
    )


def _rest(result: Result) -> str:
    told = []
    for activation in choices(result, "activation"):
        negative = numbers(select(result, part="t_outer", activation=activation), "negative")
        size = int(numbers(select(result, part="t_outer", activation=activation), "size")[0])
        left = (
            "positive semi-definite"
            if negative.max() == 0
            else f"not positive semi-definite ({span(negative)} of {size} eigenvalues are negative)"
        )
        told.append(f"With {activation} what is left without them, the T-outer-product part, is {left}.")
    return " ".join(told)


PAIRS = "t_functional"
"""The part of H − G that only two matrices have."""

COUNTS = {"two": "Two matrices", "one": "One matrix"}


def draw(cell: FinishedCell) -> Figure:
    """One draw: a row for two matrices and for one, a column a part, then the pairs; all on the same axes."""
    arrays = cell.measurement.arrays
    names = [name for name in arrays if name != "closed form"]
    top = max(float(np.abs(arrays[name]).max()) for name in names)
    most = max(int(max((arrays[name] > 0).sum(), (arrays[name] < 0).sum())) for name in names)
    shown = [(f"{count} {part}", f"{words}: {NAMES[part]}") for count, words in COUNTS.items() for part in NAMES]
    shown.append((f"two {PAIRS}", f"{COUNTS['two']}: ± pairs"))
    rows = len(COUNTS) + 1
    with panels(len(NAMES), rows, width=3.8, height=3.2, sharex=True, sharey=True) as (figure, all_axes):
        for axes, (name, title) in zip(all_axes, shown, strict=False):
            draw_mirrored(axes, arrays[name], top, arrays["closed form"] if PAIRS in name else None)
            axes.set_title(title)
            _label(axes)
        for axes in all_axes[len(shown) :]:
            axes.set_axis_off()
        all_axes[0].set_xlim(0, most + 1)
    return figure


def _label(axes: Axes) -> None:
    axes.set_xlabel("number, largest first")
    axes.set_ylabel("eigenvalue (loss / weight²)")


CAPTION = (
    "Eigenvalues of the query-key part of one draw with {activation} attention, largest absolute value first: positive "
    "ones (blue dots) above zero, negative ones (yellow triangles) below, and in grey the positive ones mirrored, so "
    "that triangles on the grey line have a partner. G is the Gauss-Newton matrix, H − G the rest, H the whole; the "
    "± pairs are the T-functional part of H − G, which one matrix does not have, with its closed form in black: plus "
    "and minus the singular values of a d × d matrix. The axis is linear near zero and logarithmic beyond."
)


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """One picture an activation, of its first draw."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["activation"]), cell)
    return [ResultPicture(name, draw(cell), CAPTION.format(activation=name)) for name, cell in cells.items()]


PRESENTATIONS = {"query_key_spectra": Presentation(Findings(sentences), draw_all)}
