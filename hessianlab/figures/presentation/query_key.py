"""The query-key part in words and pictures: one matrix and two, negative eigenvalues, rank of the T-outer part."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import choices, numbers, select
from hessianlab.plots.charts import draw_mirrored, draw_spectrum
from hessianlab.plots.picture import Presentation, ResultPicture, captioned
from hessianlab.plots.style import GRID, INK, MUTED, PURPLE, log_axis, panels
from hessianlab.results import Findings, FinishedCell, Result
from hessianlab.wording import short, span

MATRICES = {"dual": "two matrices", "single": "one matrix"}


def parameterisations_sentences(result: Result) -> list[str]:
    """Same function, other curvature: signs, rank, conditioning and gradients."""
    rows = {name: select(result, parameters=name, part="full") for name in MATRICES}
    gap = float(numbers(rows["dual"], "output_gap").max())
    share = {name: 100 * numbers(found, "negative_share").mean() for name, found in rows.items()}
    count = {name: 100 * (numbers(f, "negative") / numbers(f, "size")).mean() for name, f in rows.items()}
    condition = {name: float(np.median(numbers(found, "condition"))) for name, found in rows.items()}
    norm, gradient = (numbers(rows["dual"], field) / numbers(rows["single"], field) for field in ("norm", "gradient"))
    return [
        f"Outputs agree to {short(gap)}. Negative eigenvalues make up {share['dual']:.0f} % of the absolute spectrum "
        f"(and {count['dual']:.0f} % of all eigenvalues) with two matrices, {share['single']:.0f} % "
        f"({count['single']:.0f} %) with one.",
        f"The norm of the query-key Hessian with two matrices is {short(float(norm.min()))} to "
        f"{short(float(norm.max()))} times that with one, the norm of the gradient {short(float(gradient.min()))} to "
        f"{short(float(gradient.max()))} times.",
        "The median condition number on the directions that are curved is "
        + ", ".join(f"{short(condition[name])} with {text}" for name, text in MATRICES.items())
        + ".",
    ]


KINDS = {"dual": ("Two matrices", INK, "o", -0.12), "single": ("One matrix", PURPLE, "D", 0.12)}
QUANTITIES = {
    "negative_share": ("Negative curvature", "share of the sum of |eigenvalues|", False),
    "condition": ("Condition number", "largest / smallest non-zero |λ|", True),
    "norm": ("Norm of the Hessian", "Frobenius norm (loss / weight²)", True),
    "gradient": ("Norm of the gradient", "norm (loss / weight)", True),
}


def draw_numbers(result: Result) -> Figure:
    """Means over draws (geometric on logarithmic axes) with their range, by query width."""
    widths = [int(w) for w in np.unique(numbers(result.rows(), "d_k"))]
    with panels(2, 2, width=4.2, height=3.2) as (figure, all_axes):
        for axes, (field, (title, unit, logarithmic)) in zip(all_axes, QUANTITIES.items(), strict=True):
            for kind in KINDS:
                for at, d_k in enumerate(widths):
                    values = numbers(select(result, parameters=kind, part="full", d_k=d_k), field)
                    _point(axes, at, kind, values, logarithmic)
            axes.set_xticks(range(len(widths)), [str(w) for w in widths])
            axes.set_xlim(-0.5, len(widths) - 0.5)
            axes.set_xlabel("query width")
            axes.set_title(title)
            axes.set_ylabel(unit)
            if logarithmic:
                log_axis(axes, "y")
                low, high = np.log10(axes.dataLim.intervaly)
                axes.set_ylim(10 ** np.floor(low), 10 ** np.ceil(high))
            else:
                axes.set_ylim(bottom=0)
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _point(axes: Axes, at: int, kind: str, values: np.ndarray, logarithmic: bool) -> None:
    label, colour, marker, shift = KINDS[kind]
    middle = 10 ** np.log10(values).mean() if logarithmic else values.mean()
    axes.plot([at + shift] * 2, [values.min(), values.max()], color=colour, linewidth=1.4)
    axes.plot([at + shift], [middle], marker, color=colour, label=label if at == 0 else None)


def draw_spectra(result: Result) -> Figure:
    """The spectra of one matrix and of two at the same function, first draw of each query width."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["d_k"]), cell)
    with panels(len(cells), len(KINDS), width=3.7, height=3.0, sharey=True) as (figure, all_axes):
        top = max(float(np.abs(c.measurement.arrays[n]).max()) for c in cells.values() for n in KINDS)
        for k, (name, (title, *_)) in enumerate(KINDS.items()):
            for axes, (d_k, cell) in zip(all_axes[k * len(cells) :], cells.items(), strict=False):
                draw_spectrum(axes, cell.measurement.arrays[name], top)
                axes.set_title(f"{title}, query width {d_k}", size=10)
            all_axes[k * len(cells)].set_ylabel("eigenvalue (loss / weight²)")
        for axes in all_axes[-len(cells) :]:
            axes.set_xlabel("eigenvalue number, ascending")
    return figure


CAPTIONS = {
    "spectra": "Eigenvalues of the query-key Hessian with two matrices, and with one that computes the same "
    "function; triangles pointing up positive, pointing down negative.",
    "numbers": "The same function with two query-key matrices and with one: marks are means over draws (geometric "
    "ones on logarithmic axes), bars reach from the smallest to the largest draw.",
}


PART_NAMES = {"outer": "G", "functional": "H − G", "full": "H"}
"""Parts by the letters readers know: Hessian H and Gauss-Newton matrix G."""


def spectra_sentences(result: Result) -> list[str]:
    """Shares of negative eigenvalues by part with two matrices and with one; the pairs; what is left without them."""
    return [_shares(result), _pairs(result), _rest(result)]


def negative_share(result: Result, activation: str, matrices: str, part: str) -> float:
    """The share of the negative ones in the sum of all absolute eigenvalues, mean over draws."""
    rows = select(result, activation=activation, matrices=matrices, part=part)
    return float(numbers(rows, "negative_share").mean())


def _shares(result: Result) -> str:
    sentences = []
    for activation in choices(result, "activation"):
        found = {
            count: {part: negative_share(result, activation, count, part) for part in PART_NAMES}
            for count in ("two", "one")
        }
        by_part = "; ".join(
            f"{name} {100 * found['two'][part]:.0f} % with two matrices, {100 * found['one'][part]:.0f} % with one"
            for part, name in PART_NAMES.items()
        )
        sentences.append(f"With {activation}: {by_part}")
    outer = numbers(select(result, part="outer"), "negative")
    verdict = (
        "no negative eigenvalue comes from G, all of them from H − G"
        if outer.max() == 0
        else f"G itself has up to {outer.max():.0f} negative eigenvalues"
    )
    return f"Share of negative eigenvalues in the sum of all absolute ones. {'. '.join(sentences)}. So {verdict}."


def _pairs(result: Result) -> str:
    pairs, t_functional = select(result, part="pairs"), select(result, part="t_functional")
    as_predicted = sum(
        row["multiplicity"] == row["predicted_multiplicity"]
        and own["rank"] == row["predicted_nonzero"]
        and 2 * own["negative"] == own["rank"]
        for row, own in zip(pairs, t_functional, strict=True)
    )
    return (
        f"In {as_predicted} of {len(pairs)} draws the T-functional part, which only two matrices have, has exactly "
        "2 rank(B) d_K non-zero eigenvalues, each d_K times, half of them negative; they are symmetric about zero to "
        f"{short(float(numbers(pairs, 'pairing_gap').max()))} of the largest and equal the closed form to "
        f"{short(float(numbers(pairs, 'closed_form_gap').max()))}."
    )


def _rest(result: Result) -> str:
    sentences = []
    for activation in choices(result, "activation"):
        negative = numbers(select(result, part="t_outer", activation=activation), "negative")
        size = int(numbers(select(result, part="t_outer", activation=activation), "size")[0])
        left = (
            "positive semi-definite"
            if negative.max() == 0
            else f"not positive semi-definite ({span(negative)} of {size} eigenvalues are negative)"
        )
        sentences.append(f"With {activation} what is left without them, the T-outer-product part, is {left}.")
    return " ".join(sentences)


PAIRS = "t_functional"
"""The part of H − G that only two matrices have."""

COUNTS = {"two": "Two matrices", "one": "One matrix"}


def draw_query_key_spectra(cell: FinishedCell) -> Figure:
    """One draw: a row for two matrices and for one, a column a part, then the pairs; all on the same axes."""
    arrays = cell.measurement.arrays
    names = [name for name in arrays if name != "closed form"]
    top = max(float(np.abs(arrays[name]).max()) for name in names)
    most = max(int(max((arrays[name] > 0).sum(), (arrays[name] < 0).sum())) for name in names)
    shown = [
        (f"{count} {part}", f"{words}: {PART_NAMES[part]}") for count, words in COUNTS.items() for part in PART_NAMES
    ]
    shown.append((f"two {PAIRS}", f"{COUNTS['two']}: ± pairs"))
    rows = len(COUNTS) + 1
    with panels(len(PART_NAMES), rows, width=3.8, height=3.2, sharex=True, sharey=True) as (figure, all_axes):
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


SPECTRA_CAPTION = (
    "Eigenvalues of the query-key part of one draw with {activation} attention, largest absolute value first: positive "
    "ones (triangles pointing up) above zero, negative ones (pointing down) below, and in grey the positive ones "
    "mirrored, so "
    "that triangles on the grey line have a partner. G is the Gauss-Newton matrix, H − G the rest, H the whole; the "
    "± pairs are the T-functional part of H − G, which one matrix does not have, with its closed form in black: plus "
    "and minus the singular values of a d × d matrix. The axis is linear near zero and logarithmic beyond."
)


def draw_by_activation(result: Result, _reference: object = None) -> list[ResultPicture]:
    """One picture an activation, of its first draw."""
    cells: dict[str, FinishedCell] = {}
    for cell in result.cells:
        cells.setdefault(str(cell.parameters["activation"]), cell)
    return [
        ResultPicture(name, draw_query_key_spectra(cell), SPECTRA_CAPTION.format(activation=name))
        for name, cell in cells.items()
    ]


def rank_sentences(result: Result) -> list[str]:
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


LENGTHS = ((INK, "o"), (PURPLE, "D"))
"""Colour and marker of the sequence lengths, longest first."""

_WIDTHS, _SHARES = (0.1, 0.125, 0.25, 0.5, 1.0, 2.0), (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Where the axes are labelled."""

Share = Callable[[np.ndarray], np.ndarray]


def draw_ranks(result: Result) -> Figure:
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
    """Logarithmic both ways: shares that fall as one over the width are straight, and small ones stay distinct."""
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


RANK_CAPTION = (
    "Rank of the T-outer-product Hessian, the part of the query-key curvature that a single merged matrix has as well, "
    "as a share of the parameters and of the merged matrix's size, for two lengths L of the sequence, on logarithmic "
    "axes; a thin upright line marks queries as wide as the model."
)


PRESENTATIONS = {
    "parameterisations": Presentation(
        Findings(parameterisations_sentences),
        captioned({"spectra": (draw_spectra, CAPTIONS["spectra"]), "numbers": (draw_numbers, CAPTIONS["numbers"])}),
    ),
    "query_key_spectra": Presentation(Findings(spectra_sentences), draw_by_activation),
    "rank_fraction": Presentation(Findings(rank_sentences), captioned({"ranks": (draw_ranks, RANK_CAPTION)})),
}
