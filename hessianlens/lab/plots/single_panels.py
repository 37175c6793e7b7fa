"""A figure taken apart: one drawing a panel, of a size whose text can be read on a phone.

A page sets the drawings side by side where there is room and below each other where there is none; a wide picture would
shrink its text instead.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.legend import Legend
from matplotlib.text import Text

from hessianlens.lab.plots.style import STRIP, styled, to_svg

WIDTH = 3.7
"""Inches of a panel: as wide as a phone's page at 96 pixels an inch, so that points keep their size there."""

LEAST_TEXT = 9.2
"""Points: more than 12 pixels where a panel has 355."""

_SHAPES = (0.75, 1.35)
"""Least and largest height of a panel, in its width."""

_CHARACTERS = 88.0
"""Characters in an inch of a line, times the size of the text in points over ten."""


@dataclass(frozen=True)
class _Group:
    """A panel with what belongs to it: a strip below, colour bars beside."""

    axes: Axes
    strips: tuple[Axes, ...]
    bars: tuple[Axes, ...]

    @property
    def all(self) -> tuple[Axes, ...]:
        return (self.axes, *self.strips, *self.bars)


def panel_svgs(figure: Figure, name: str, description: str) -> list[str]:
    """Every panel as an inline SVG element of its own; the figure is used up.

    Args:
        figure: With one pair of axes or many, laid out by matplotlib's constrained layout.
        name: Unique on the page.
        description: Read out in place of the drawings, with the title of each behind it.
    """
    groups = _groups(figure)
    sizes = [_size(figure, group) for group in groups]
    with styled():
        _complete_labels([group.axes for group in groups])
        for axes in figure.axes:
            _enlarge(axes)
        for legend in list(figure.legends):
            _narrow(figure, legend)
        return [_draw_alone(figure, groups, number, size, name, description) for number, size in enumerate(sizes)]


def _groups(figure: Figure) -> list[_Group]:
    """Panels in their order; those without anything to see are left out."""
    bars = {axes: _parents(axes) for axes in figure.axes if _parents(axes)}
    strips = [axes for axes in figure.axes if axes.get_label() == STRIP]
    seen = [axes for axes in figure.axes if axes not in bars and axes not in strips and _has_content(axes)]
    return [
        _Group(
            axes,
            tuple(s for s in strips if _has_content(s) and axes in s.get_shared_x_axes().get_siblings(s)),
            tuple(bar for bar, parents in bars.items() if axes in parents),
        )
        for axes in seen
    ]


def _parents(axes: Axes) -> Sequence[Axes]:
    """Whose colours a colour bar explains; nothing for axes that are none."""
    info = getattr(axes, "_colorbar_info", None)
    found: Sequence[Axes] = info["parents"] if info else ()
    return found


def _has_content(axes: Axes) -> bool:
    return axes.axison or bool(axes.texts) or axes.has_data()


def _size(figure: Figure, group: _Group) -> tuple[float, float]:
    """Inches of the drawing: the shape of its place in the figure, within bounds."""
    width, height = figure.get_size_inches()
    place = group.axes.get_subplotspec()
    if place is not None:
        grid = place.get_gridspec()
        columns, rows = grid.get_width_ratios() or [1] * grid.ncols, grid.get_height_ratios() or [1] * grid.nrows
        width *= sum(columns[place.colspan.start : place.colspan.stop]) / sum(columns)
        height *= sum(rows[place.rowspan.start : place.rowspan.stop]) / sum(rows)
    shape = min(max(float(height / width), _SHAPES[0]), _SHAPES[1])
    return WIDTH, WIDTH * (shape + 0.35 * len(group.strips))


def _complete_labels(panels: Sequence[Axes]) -> None:
    """Panels that shared tick labels and axis labels get their own."""
    for which, across in (("x", "colspan"), ("y", "rowspan")):
        labels = {axes: getattr(axes, f"get_{which}label")() for axes in panels}
        for axes in panels:
            siblings = [
                other for other in getattr(axes, f"get_shared_{which}_axes")().get_siblings(axes) if other in panels
            ]
            if len(siblings) > 1 and axes.axison:
                axes.tick_params(axis=which, **{"labelbottom" if which == "x" else "labelleft": True})  # type: ignore[arg-type]
            if labels[axes] or not axes.axison:
                continue
            beside = [other for other in panels if labels[other] and _aligned(axes, other, across)]
            if beside:
                getattr(axes, f"set_{which}label")(labels[beside[-1]])


def _aligned(one: Axes, other: Axes, across: str) -> bool:
    first, second = one.get_subplotspec(), other.get_subplotspec()
    return first is not None and second is not None and list(getattr(first, across)) == list(getattr(second, across))


def _enlarge(axes: Axes) -> None:
    for text in axes.findobj(Text):
        _at_least(text)
    for axis in (axes.xaxis, axes.yaxis):
        _enlarge_ticks(axis)
    for loc in ("left", "center", "right"):
        title = axes.get_title(loc=loc)  # type: ignore[arg-type]
        if title:
            axes.set_title(_wrapped(title, WIDTH - 0.6, 11), loc=loc)  # type: ignore[arg-type]
    axes.set_xlabel(_wrapped(axes.get_xlabel(), WIDTH - 0.5, 10))
    axes.set_ylabel(_wrapped(axes.get_ylabel(), WIDTH * 0.75, 10))


def _enlarge_ticks(axis: Axis) -> None:
    for tick in axis.get_major_ticks():
        axis.set_tick_params(labelsize=max(float(tick.label1.get_fontsize()), LEAST_TEXT))
        return


def _at_least(text: Text) -> None:
    text.set_fontsize(max(float(text.get_fontsize()), LEAST_TEXT))


def _wrapped(words: str, inches: float, points: float) -> str:
    """In lines that fit the width.

    >>> _wrapped("In the one-block Transformer, with softmax and without it", 3.7, 11).count(chr(10))
    1
    """
    across = int(inches * _CHARACTERS * 1.25 / points)
    return "\n".join(textwrap.fill(line, across) for line in words.split("\n"))


def _narrow(figure: Figure, legend: Legend) -> None:
    """The legend of a whole figure, in as many columns as fit a panel."""
    handles, labels = list(legend.legend_handles), [text.get_text() for text in legend.get_texts()]
    legend.remove()
    columns = max(1, min(len(labels), int(WIDTH * 10 / (max(map(len, labels)) + 5))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=LEAST_TEXT, columnspacing=1.2)  # type: ignore[arg-type]


def _draw_alone(
    figure: Figure, groups: Sequence[_Group], number: int, size: tuple[float, float], name: str, description: str
) -> str:
    group = groups[number]
    for axes in figure.axes:
        axes.set_visible(axes in group.all)
        axes.set_in_layout(axes in group.all)
    if group.axes.get_subplotspec() is not None:
        places = GridSpec(1 + len(group.strips), 1, figure=figure, height_ratios=[2.4] + [1] * len(group.strips))
        for axes, place in zip((group.axes, *group.strips), places, strict=True):
            axes.set_subplotspec(place)
    figure.set_size_inches(*size)
    title = " ".join(group.axes.get_title(loc="left").split())
    return to_svg(figure, f"{name}-{number}", f"{description}: {title}" if title else description)
