"""Rank of the T-outer-product Hessian against the width of queries and keys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import BLUE, GRID, MUTED, RED, log_axis, panels
from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, span


def sentences(result: Result) -> list[str]:
    """How often bound and formula are met, and which share of the parameters is curved."""
    rows = result.rows()
    rank, bound, formula = (numbers(rows, field) for field in ("rank", "bound", "formula"))
    parameters, whole = numbers(rows, "parameters"), numbers(rows, "whole_rank")
    narrow = (numbers(rows, "length") > numbers(rows, "d_model")) & (numbers(rows, "d_k") <= numbers(rows, "d_model"))
    sentences = [
        f"The measured rank equals the exact formula in {int((rank == formula).sum())} of {len(rank)} cases; it "
        f"exceeds the bound of Lemma D.2 in {int((rank > bound).sum())} and reaches it in "
        f"{int((rank == bound).sum())}.",
        "With the T-functional part the rank of the query-key Hessian is "
        f"{span(100 * whole / parameters)} % of its size.",
    ]
    if narrow.any():
        sentences.insert(
            1,
            "With more tokens than the model's width, and d_K at most d_V, the T-outer-product part curves "
            f"{span(100 * (rank / parameters)[narrow])} % of the directions of the query-key parameters.",
        )
    return sentences


LENGTHS = ((BLUE, "o"), (RED, "D"))
"""Colour and marker of the sequence lengths, longest first."""

_WIDTHS, _SHARES = (0.1, 0.125, 0.25, 0.5, 1.0, 2.0), (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Where the axes are labelled."""

Share = Callable[[np.ndarray], np.ndarray]


def draw(result: Result) -> Figure:
    """Rank as a share of the query-key parameters, and of d_V squared as in the article."""
    d = numbers(result.rows(), "d_model")[0]
    with panels(2, width=4.8, height=3.9) as (figure, (left, right)):
        _ranks(left, result, lambda d_k: 2 * d * d_k)
        _ranks(right, result, lambda d_k: np.full_like(d_k, d**2))
        left.set_ylabel("rank / number of query-key parameters")
        right.set_ylabel("rank / width squared")
        left.set_title("Share of the query-key parameters")
        right.set_title("Share of the merged matrix")
        for axes in (left, right):
            axes.set_xlabel("query width / model width")
            _share_axes(axes)
            axes.axvline(1, color=MUTED, linewidth=0.8, zorder=0)
        handles, labels = left.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, columnspacing=1.2)
    return figure


def _share_axes(axes: Axes) -> None:
    """Logarithmic both ways: shares that fall as one over the width are straight, and small ones can be told apart."""
    for which, ticks in (("x", _WIDTHS), ("y", _SHARES)):
        log_axis(axes, which)
        low, high = getattr(axes.dataLim, f"interval{which}")
        getattr(axes, f"set_{which}lim")(low / 1.3, high * 1.3)
        getattr(axes, f"set_{which}ticks")([tick for tick in ticks if low / 1.3 <= tick <= high * 1.3])
        getattr(axes, f"{which}axis").set_major_formatter("{x:g}")


def _ranks(axes: Axes, result: Result, whole: Share) -> None:
    lengths = np.unique(numbers(result.rows(), "length"))[::-1]
    for (colour, marker), length in zip(LENGTHS, lengths, strict=False):
        rows = select(result, length=int(length))
        d_k, d = numbers(rows, "d_k"), numbers(rows, "d_model")
        order = np.argsort(d_k, kind="stable")
        x = (d_k / d)[order]
        rank, bound, formula = ((numbers(rows, name) / whole(d_k))[order] for name in ("rank", "bound", "formula"))
        if length == lengths[0]:
            axes.plot(x, bound, color=GRID, linewidth=9, label="bound of Lemma D.2")
        axes.plot(x, formula, color=colour, linewidth=1.2, label=f"formula, L = {length:g}")
        axes.plot(x, rank, marker, color=colour, markersize=5, label=f"measured, L = {length:g}")


CAPTION = (
    "Rank of the T-outer-product Hessian, the part of the query-key curvature that a single merged matrix has as well, "
    "as a share of the parameters and of the merged matrix's size, for two lengths L of the sequence, on logarithmic "
    "axes; a thin upright line marks queries as wide as the model."
)


def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
    """The one picture."""
    return [ResultPicture("ranks", draw(result), CAPTION)]


PRESENTATIONS = {"rank_fraction": Presentation(Findings(sentences), draw_all)}
