"""A figure taken apart: every panel as a drawing of its own, narrow enough for a phone and with text as large.

    panel_svgs(figure, name, description) -> one inline SVG element a panel
    each_panel(figure, render) -> what `render` makes of every panel

A panel is a pair of axes with a title, together with its colour bar and with the axes below it in the same column that
have no title (a strip of ratios, say). Alone it gets what it shared with its neighbours: the labels of a shared axis,
the legend of the whole figure. Names of a legend stand beside their curves where there is room, else below the axes,
long lines are broken, no text is below 9 points (12 CSS pixels), and the drawing is as wide as a phone's column, so
that nothing has to be scaled down there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import TypeVar

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from hessianlab.plots.direct_labels import label_curves
from hessianlab.plots.style import figure_style, to_svg

NARROW = 3.6
"""Inches: 346 CSS pixels, the column of a page that is 390 wide."""

LEAST_POINTS = 9.0
"""The smallest text: 12 CSS pixels."""

_LEAST_HEIGHT = 0.8
"""A narrower panel becomes lower too, but not below this share of its height."""
_LEAST_SQUARE = 0.64
"""A map keeps its shape, and needs less height as it becomes narrower."""
_ROUNDS = 3
"""Layouts until a map, which keeps its shape, and the texts around it have found their places."""
_MARGIN = 4.0
"""Points that stay free at an edge."""

Drawn = TypeVar("Drawn")


def panel_svgs(figure: Figure, name: str, description: str) -> list[str]:
    """Every panel of a figure as an inline SVG element of its own: 346 CSS pixels wide, no text below 12.

    Args:
        figure: With one panel or several; it is used up.
        name: Unique on the page; the panels' ids begin with it and a number.
        description: Read out in place of a drawing, with the panel's title behind it; HTML is escaped already.

    >>> from hessianlab.plots.style import panels
    >>> with panels(2) as (figure, (left, right)):
    ...     titles = left.set_title("one"), right.set_title("a < b")
    >>> [svg[: svg.index(" style")] for svg in panel_svgs(figure, "a", "Both")]
    ['<svg role="img" aria-label="Both: one"', '<svg role="img" aria-label="Both: a &lt; b"']
    """
    numbers = count(1)

    def svg(panel: Figure) -> str:
        titles = [axes.get_title("left") or axes.get_title() for axes in panel.axes if axes.get_visible()]
        said = escape(" ".join(" ".join(titles).split()), quote=True)
        return to_svg(panel, f"{name}-{next(numbers)}", f"{description}: {said}" if said else description)

    return each_panel(figure, svg)


def each_panel(figure: Figure, render: Callable[[Figure], Drawn], width: float = NARROW) -> list[Drawn]:
    """What `render` makes of every panel alone, in the order of reading; the figure is taken apart for it.

    Args:
        figure: With one panel or several. It is used up: a copy would take as long as drawing.
        render: Called once a panel, with a figure that shows this panel alone until `render` returns.
        width: Of a panel, in inches.

    >>> from hessianlab.plots.style import panels
    >>> with panels(2, sharey=True) as (figure, (left, right)):
    ...     titles = left.set_title("one"), right.set_title("two")
    ...     label = left.set_ylabel("norm")
    >>> each_panel(figure, lambda panel: [axes.get_ylabel() for axes in panel.axes if axes.get_visible()])
    [['norm'], ['norm']]
    """
    with figure_style():
        groups = _groups(figure)
        sizes = [[_size(axes) for axes in group] for group in groups]
        _lend_labels(groups)
        legends = [_entries(figure.legends, group) for group in groups]
        figure.legends.clear()
        drawn = []
        for group, size, entries in zip(groups, sizes, legends, strict=True):
            shown = _show(figure, group)
            least = [_LEAST_HEIGHT if axes.get_aspect() == "auto" else _LEAST_SQUARE for axes in group]
            heights = [
                high * min(1.0, max(width / wide, share)) for (wide, high), share in zip(size, least, strict=True)
            ]
            figure.set_size_inches(width, sum(heights))
            grid = figure.add_gridspec(len(group), 1, height_ratios=heights)
            for number, axes in enumerate(group):
                axes.set_subplotspec(grid[number])
            _fit(figure, group, shown)
            if len(group) == 1 and entries.labels and group[0].get_aspect() == "auto":
                entries = entries.only(label_curves(group[0], entries.labels))
            if entries.labels:
                _legend_below(figure, entries)
            for _ in range(_ROUNDS if any(axes.get_aspect() != "auto" for axes in group) else 0):
                _lay_out(figure)
            drawn.append(render(figure))
            figure.legends.clear()
        return drawn


def _groups(figure: Figure) -> list[list[Axes]]:
    """The axes of every panel."""
    groups: dict[Axes, list[Axes]] = {}
    for axes in figure.axes:
        spec = axes.get_subplotspec()
        if spec is None or not (axes.axison or axes.texts):
            continue
        above = [
            first
            for first in groups
            if _columns(first) == _columns(axes) and not axes.get_title("left") and not axes.get_title()
        ]
        groups.setdefault(above[-1] if above else axes, []).append(axes)
    return list(groups.values())


def _columns(axes: Axes) -> tuple[int, int]:
    spec = axes.get_subplotspec()
    assert spec is not None
    return spec.colspan.start, spec.colspan.stop


def _rows(axes: Axes) -> tuple[int, int]:
    spec = axes.get_subplotspec()
    assert spec is not None
    return spec.rowspan.start, spec.rowspan.stop


def _size(axes: Axes) -> tuple[float, float]:
    """Width and height in inches of the place that axes have in the whole figure."""
    figure, spec = axes.get_figure(), axes.get_subplotspec()
    assert isinstance(figure, Figure) and spec is not None
    grid = spec.get_gridspec()
    across, down = (np.asarray(ratios, dtype=float) for ratios in (grid.get_width_ratios(), grid.get_height_ratios()))
    left, right = _columns(axes)
    top, bottom = _rows(axes)
    width, height = figure.get_size_inches()
    return (
        float(width * across[left:right].sum() / across.sum()),
        float(height * down[top:bottom].sum() / down.sum()),
    )


def _lend_labels(groups: Sequence[Sequence[Axes]]) -> None:
    """Every panel gets the labels that only a neighbour in its row, or below it, has."""
    for group in groups:
        others = [axes for other in groups if other is not group for axes in other]
        for axes in group:
            if not axes.get_ylabel():
                beside = (other for other in others if _rows(other) == _rows(axes))
                axes.set_ylabel(next((other.get_ylabel() for other in beside if other.get_ylabel()), ""))
            if any(axes.get_shared_y_axes().joined(axes, other) for other in others):
                axes.tick_params(axis="y", labelleft=True)
        last = group[-1]
        if not last.get_xlabel():
            below = (other for other in others if _columns(other) == _columns(last))
            last.set_xlabel(next((other.get_xlabel() for other in below if other.get_xlabel()), ""))
        if any(last.get_shared_x_axes().joined(last, other) for other in others):
            last.tick_params(axis="x", labelbottom=True)


@dataclass(frozen=True, eq=False)
class _Entries:
    """What the legends of a panel hold."""

    handles: list[Artist]
    labels: list[str]
    title: str

    def only(self, labels: Collection[str]) -> _Entries:
        """Those with these labels."""
        kept = [(handle, label) for handle, label in zip(self.handles, self.labels, strict=True) if label in labels]
        return _Entries([handle for handle, _ in kept], [label for _, label in kept], self.title if kept else "")


def _entries(shared: Sequence[Legend], group: Sequence[Axes]) -> _Entries:
    """Those of the panel's own legends, which are removed, and of the whole figure's."""
    own = [legend for axes in group if (legend := axes.get_legend()) is not None]
    handles: list[Artist] = []
    labels: list[str] = []
    for legend in (*own, *shared):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if handle is not None and text.get_text() not in labels:
                handles.append(handle)
                labels.append(text.get_text())
    titles = [legend.get_title().get_text() for legend in (*own, *shared)]
    for legend in own:
        legend.remove()
    return _Entries(handles, labels, next(filter(None, titles), ""))


def _show(whole: Figure, group: Sequence[Axes]) -> list[Axes]:
    """These axes and their colour bars, which are returned, and no others."""
    bars = [bar for axes in group for bar in _colour_bars(axes)]
    for axes in whole.axes:
        axes.set_visible(axes in group or axes in bars)
        axes.set_in_layout(axes.get_visible())
    return [*group, *bars]


def _colour_bars(axes: Axes) -> Iterator[Axes]:
    for shown in (*axes.images, *axes.collections):
        if shown.colorbar is not None:
            yield shown.colorbar.ax


def _fit(whole: Figure, group: Sequence[Axes], shown: Sequence[Axes]) -> None:
    """No text too small, no line longer than there is room for it."""
    for text in (text for axes in shown for text in axes.findobj(Text)):
        text.set_fontsize(max(text.get_fontsize(), LEAST_POINTS))
    for axes in shown:
        for ticks in (axes.xaxis, axes.yaxis):
            ticks.set_tick_params(labelsize=max(LEAST_POINTS, ticks.get_tick_params().get("labelsize", LEAST_POINTS)))
    _lay_out(whole)
    margin = _MARGIN * whole.dpi / 72
    for axes in shown:
        place = axes.get_window_extent()
        beside = min(place.x0 + place.x1, 2 * whole.bbox.width - place.x0 - place.x1)
        _break_lines(axes.xaxis.label, beside - margin)
        if axes not in group:
            continue
        above = min(place.y0 + place.y1, 2 * whole.bbox.height - place.y0 - place.y1)
        _break_lines(axes.yaxis.label, min(above - margin, 1.15 * place.height), upright=True)
        titles = {axes.get_title(where) for where in ("left", "center")} - {""}
        for title in (text for text in axes.get_children() if isinstance(text, Text) and text.get_text() in titles):
            _break_lines(title, whole.bbox.width - place.x0 - margin)


def _lay_out(whole: Figure) -> None:
    """Every axes in its place; drawing does that, too, and costs several times as much."""
    engine = whole.get_layout_engine()
    if engine is not None:
        engine.execute(whole)


def _break_lines(text: Text, room: float, upright: bool = False) -> None:
    """Break a text at spaces so that no line is longer than the room, in pixels."""
    words = text.get_text().split(" ")

    def length(line: str) -> float:
        text.set_text(line)
        box = text.get_window_extent()
        return box.height if upright else box.width

    lines = [words[0]]
    for word in words[1:]:
        longer = f"{lines[-1]} {word}"
        if length(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    text.set_text("\n".join(lines))


def _legend_below(whole: Figure, entries: _Entries) -> None:
    """A legend with as many columns as fit; the drawing grows by its height."""
    room = whole.bbox.width
    for columns in (3, 2, 1):
        legend = whole.legend(
            entries.handles,
            entries.labels,
            title=entries.title,
            loc="outside lower left",
            ncols=columns,
            fontsize=LEAST_POINTS,
            title_fontsize=LEAST_POINTS,
            handlelength=1.8,
            columnspacing=1.2,
            alignment="left",
        )
        wide = legend.get_window_extent().width
        if wide <= room or columns == 1:
            break
        legend.remove()
    indent = wide - max(text.get_window_extent().width for text in legend.get_texts())
    for text in legend.get_texts():
        _break_lines(text, room - indent)
    width, height = whole.get_size_inches()
    whole.set_size_inches(width, height + legend.get_window_extent().height / whole.dpi)
