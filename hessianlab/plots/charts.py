"""Charts that several pages draw: intervals, claims, histograms, spectra, matrices in logarithmic colours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullLocator

from hessianlab.claims.finding import Curves
from hessianlab.plots.style import (
    INK,
    MUTED,
    OBJECTS,
    PURPLE,
    SKY,
    log_axis,
    panel,
    panels,
    readable_on,
)
from hessianlab.results import FinishedCell, Result
from hessianlab.wording import power_of_ten, scientific

_LEVELS = 64
_LARGEST_SHARP = 1024


def log_scale(maps: Sequence[np.ndarray], least: float = 2.0) -> Normalize:
    """A common colour scale for maps of logarithms; the smallest `least` percent of the entries share a colour."""
    finite = np.concatenate([m[np.isfinite(m)] for m in maps])
    return Normalize(float(np.percentile(finite, least)), float(finite.max()))


def block_map(
    axes: Axes, logs: np.ndarray, names: Sequence[str], sizes: Sequence[int], scale: Normalize, line: float = 1.4
) -> AxesImage:
    """Draw log10 of absolute entries; entries that are exactly zero stay blank.

    Args:
        axes: Where.
        logs: Square, minus infinity for zero.
        names: Of the blocks, as labels.
        sizes: Of the blocks, along one side.
        scale: Colours, from `log_scale`.
        line: Width of the borders in points.
    """
    colours = ListedColormap(mpl.colormaps["viridis"](np.linspace(0, 1, _LEVELS))).with_extremes(bad=(0, 0, 0, 0))
    # Few levels keep an embedded picture small; large matrices are averaged down instead of sampled.
    smooth = "nearest" if len(logs) <= _LARGEST_SHARP else "auto"
    image = axes.imshow(
        np.ma.masked_invalid(logs), cmap=colours, norm=scale, interpolation=smooth, interpolation_stage="data"
    )
    ends = np.cumsum(sizes)
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=line)
        axes.axvline(end - 0.5, color="white", linewidth=line)
    centres = ends - np.array(sizes) / 2 - 0.5
    axes.set_xticks(centres, list(names))
    axes.set_yticks(centres, list(names))
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
    return image


def log_colour_bar(figure: Figure, axes: Axes, image: AxesImage, label: str) -> None:
    """A bar below the map, labelled at whole powers of ten."""
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", pad=0.03, extend="min", aspect=30)
    low, high = image.get_clim()
    ticks = np.arange(np.ceil(low), high + 1e-9)
    bar.set_ticks(list(ticks), labels=[power_of_ten(t) for t in ticks])
    bar.set_label(label)


_LINE = 0.44
"""Inches of a row: its name, and its interval below."""


_COLOURS = (INK, PURPLE, SKY, MUTED)
_BLOCKS = {"query": r"W_Q|quer|QQ", "key": r"W_K\b|\bkeys?\b|KK", "value": r"W_V|value|VV"}
"""What a curve of a block is called; other curves take colours that no block has."""
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
            axes.plot(x, y, line, marker="o", markersize=2.5, color=_curve_colour(name, n), label=name)
        for which, logarithmic in (("x", curves.log_x), ("y", curves.log_y)):
            if logarithmic:
                log_axis(axes, which)
        axes.set(xlabel=curves.x_label, ylabel=curves.y_label)
        axes.set_title(title)
        if len(curves.curves) > 1:
            axes.legend()
    return figure


def _curve_colour(name: str, place: int) -> str:
    """The colour of the one block that a curve names; else one by its place."""
    named = [block for block, pattern in _BLOCKS.items() if re.search(pattern, name)]
    return OBJECTS[named[0]] if len(named) == 1 else _COLOURS[place % len(_COLOURS)]


def write_claim_figure(curves: Curves, title: str, path: Path) -> Path:
    """The picture as a PNG file."""
    claim_figure(curves, title).savefig(path, dpi=_DPI)
    return path


def draw_cell(axes: Axes, at: tuple[int, int], value: float | None, text: str, scale: Normalize) -> None:
    """One cell of a table: text on the colour of its value, or muted text where there is no value."""
    x, y = at
    if value is None:
        axes.text(x, y, text, ha="center", va="center", color=MUTED)
        return
    colour = mpl.colormaps["cividis"](scale(value))
    axes.add_patch(Rectangle((x - 0.47, y - 0.45), 0.94, 0.9, color=colour, linewidth=0))
    axes.text(x, y, text, ha="center", va="center", color=readable_on(colour))


def frame_cells(axes: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Labels of a table of cells: columns above, rows from the top down."""
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


COLOURS = {name: OBJECTS[name] for name in ("query", "value")}
TITLES = {"softmax": "Softmax attention", "linear": "Linear attention"}
_MARGIN = 0.5
_SIDES = ("right", "left")
"""Where names stand above two histograms: that of the smaller entries ends at its peak, the other begins there."""


def draw_histograms(result: Result) -> Figure:
    """Histograms of the query and value blocks, one panel a kind of attention, all draws together."""
    groups: dict[str, list[FinishedCell]] = {}
    for cell in result.cells:
        if "edges" in cell.measurement.arrays:
            groups.setdefault(str(cell.parameters.get("attention", "softmax")), []).append(cell)
    with panels(len(groups), width=5.4 if len(groups) == 1 else 4.6, height=3.6, sharex=True, sharey=True) as (
        figure,
        all_axes,
    ):
        for axes, (kind, cells) in zip(all_axes, groups.items(), strict=True):
            _panel(axes, cells)
            axes.set_title(f"{TITLES.get(kind, f'{kind} attention')}, {len(cells)} draws")
            axes.set_xlabel("|entry| of the Hessian block (loss / weight²)")
        all_axes[0].set_ylabel("share of entries (% in 0.1 decade)")
        # Room for the names; the panels share their axes.
        all_axes[0].set_ylim(0, 1.4 * max(axes.dataLim.y1 for axes in all_axes))
        _powers_of_ten(all_axes[0], [cell for cells in groups.values() for cell in cells])
    return figure


def _panel(axes: Axes, cells: list[FinishedCell]) -> None:
    edges = cells[0].measurement.arrays["edges"]
    names: dict[str, tuple[float, float, str]] = {}
    for name, colour in COLOURS.items():
        counts = np.sum([cell.measurement.arrays[name] for cell in cells], axis=0)
        share = 100 * counts / counts.sum()
        axes.stairs(share, edges, color=colour, fill=True, alpha=0.25)
        middle = float(np.interp(0.5, np.cumsum(counts) / counts.sum(), edges[1:]))
        axes.stairs(share, edges, color=colour, linewidth=1.6)
        axes.vlines(middle, 0, share[np.searchsorted(edges, middle) - 1], color=colour, linewidth=1)
        names[name] = middle, float(share.max()), colour
    for (name, (middle, top, colour)), side in zip(sorted(names.items(), key=lambda n: n[1][0]), _SIDES, strict=False):
        words = f"{name} block,\nmedian {scientific(10**middle)}"
        place: Any = {"textcoords": "offset points", "ha": side, "va": "bottom", "color": colour, "weight": "bold"}
        axes.annotate(words, (middle, top), (-3 if side == "right" else 3, 4), **place)


def _powers_of_ten(axes: Axes, cells: list[FinishedCell]) -> None:
    """Labels at every second power of ten, over the range that holds nearly all entries."""
    edges = cells[0].measurement.arrays["edges"]
    counts = np.sum([cell.measurement.arrays[name] for cell in cells for name in COLOURS], axis=0)
    total = np.cumsum(counts) / counts.sum()
    low, high = edges[np.searchsorted(total, 0.001)], edges[np.searchsorted(total, 0.9999) + 1]
    axes.set_xlim(low - _MARGIN, high + _MARGIN)
    ticks = np.arange(np.ceil(low - _MARGIN), high + _MARGIN)
    axes.set_xticks(ticks[:: 1 if len(ticks) < 9 else 2])
    axes.xaxis.set_major_formatter(lambda value, _: power_of_ten(value))


_DECADES = 3
"""Decades below the largest eigenvalue that are shown logarithmically; smaller ones lie on a linear scale."""


def draw_spectrum(axes: Axes, values: np.ndarray, top: float) -> None:
    """Eigenvalues as dots by sign, with their counts; what is within rounding of zero is grey."""
    least = _rounding(values)
    index = np.arange(1, len(values) + 1)
    groups = {
        "positive": (values > least, INK, "^"),
        "negative": (values < -least, INK, "v"),
        "zero": (np.abs(values) <= least, MUTED, "."),
    }
    for chosen, colour, marker in groups.values():
        axes.plot(index[chosen], values[chosen], marker, color=colour, markersize=3.6, markeredgewidth=0)
    counts = ", ".join(f"{int(chosen.sum())} {name}" for name, (chosen, _, _) in groups.items())
    axes.text(0.98, 0.03, counts, transform=axes.transAxes, ha="right", va="bottom", size=8.5, color=MUTED)
    _signed_axis(axes, top)


def draw_mirrored(axes: Axes, values: np.ndarray, top: float, closed_form: np.ndarray | None = None) -> None:
    """Positive eigenvalues above zero and negative ones below, each from the largest on: pairs stand under each other.

    Args:
        axes: Where.
        values: All eigenvalues, in any order; those within rounding of zero are not drawn but counted.
        top: The largest absolute eigenvalue of all spectra on the same axis.
        closed_form: Eigenvalues from a formula, as a line.
    """
    least = _rounding(values)
    positive, negative = np.sort(values[values > least])[::-1], np.sort(values[values < -least])
    axes.plot(np.arange(1, len(positive) + 1), -positive, color=MUTED, linewidth=1.4, alpha=0.7)
    for found, colour, marker in ((positive, INK, "^"), (negative, INK, "v")):
        axes.plot(np.arange(1, len(found) + 1), found, marker, color=colour, markersize=4.2, markeredgewidth=0)
    for found in () if closed_form is None else (np.sort(closed_form)[::-1], np.sort(closed_form)):
        kept = found[np.abs(found) > least]
        kept = kept[: len(kept) // 2]
        axes.plot(np.arange(1, len(kept) + 1), kept, color=INK, linewidth=0.9)
    zeros = len(values) - len(positive) - len(negative)
    above, below = f"{len(positive)} positive", f"{len(negative)} negative, {zeros} zero"
    axes.text(0.98, 0.97, above, transform=axes.transAxes, ha="right", va="top", size=9, color=MUTED)
    axes.text(0.98, 0.03, below, transform=axes.transAxes, ha="right", va="bottom", size=9, color=MUTED)
    if zeros == len(values):
        axes.text(0.5, 0.5, "exactly zero", transform=axes.transAxes, ha="center", va="bottom", color=MUTED)
    _signed_axis(axes, top)


def _rounding(values: np.ndarray) -> float:
    """What an eigenvalue of zero may look like."""
    return float(len(values) * np.finfo(values.dtype).eps * np.abs(values).max())


def _signed_axis(axes: Axes, top: float) -> None:
    """Logarithmic to both sides, linear near zero."""
    axes.axhline(0, color=MUTED, linewidth=0.8, zorder=0)
    highest = int(np.ceil(np.log10(top)))
    threshold = 10.0 ** (highest - _DECADES)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.6)
    decades = [10.0**e for e in range(highest - _DECADES, highest + 1)]
    axes.set_yticks([-d for d in reversed(decades)] + [0.0, *decades])
    axes.yaxis.set_major_formatter(FuncFormatter(_signed_power))
    axes.yaxis.set_minor_locator(NullLocator())


def _signed_power(value: float, _: object = None) -> str:
    if value == 0:
        return "0"
    return ("−" if value < 0 else "") + power_of_ten(np.log10(abs(value)))
