"""Names of curves beside the curves, in their colours, instead of a legend: where there is room for them.

A name stands as near to its curve as it can without covering a curve or another name, and nearer to its own curve than
to any other that is not in the same place. If one of them finds no such place, all are left for a legend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import same_color
from matplotlib.lines import Line2D
from matplotlib.text import Text

from hessianlab.plots.style import SKY

_PLACES = np.linspace(0.04, 0.96, 24)
"""Where along a curve its name may stand, as shares of its length."""

_DISTANCES = (3.0, 9.0, 16.0, 26.0, 40.0)
"""Points between a curve and its name."""

_DIRECTIONS = tuple((x, y) for y in (1, -1, 0) for x in (0, 1, -1) if x or y)
_GAP = 1.5
"""Points that stay free around a name."""

_SAME = 5.0
"""Curves this near, in points, are in the same place."""

_FAR = 12.0
"""Names further away than this, in points, get a thin line to their curve."""

Box = tuple[float, float, float, float]
"""Left, bottom, right, top in pixels."""


def label_curves(axes: Axes, names: Sequence[str]) -> list[str]:
    """Write names beside the curves that are labelled so; the axes must have their final place.

    Returns:
        Names that have no curve; all of them if one of the others finds no place.

    >>> from hessianlab.plots.style import panel
    >>> with panel() as (figure, axes):
    ...     _ = axes.plot([0, 1], [0, 1], label="rising"), axes.plot([0, 1], [1, 0], label="falling")
    ...     _ = figure.get_layout_engine().execute(figure)
    ...     left = label_curves(axes, ["rising", "falling", "none"])
    >>> left, sorted(text.get_text() for text in axes.texts)
    (['none'], ['falling', 'rising'])
    """
    unit = axes.figure.dpi / 72
    curves = {str(line.get_label()): line for line in axes.get_lines()}
    drawn = {line: found for line in axes.get_lines() if len(found := _pixels(axes, line))}
    named = [name for name in names if name in curves and curves[name] in drawn]
    taken, before = [_box(text) for text in axes.texts], set(axes.get_children())
    every = np.concatenate([np.empty((0, 2)), *drawn.values()])
    frame = axes.get_window_extent()
    inside = (frame.x0, frame.y0, frame.x1, frame.y1)
    for name in named:
        own = drawn[curves[name]]
        rivals = [_rival(curves[name], curves[other], drawn, unit) for other in named if other != name]
        colour = curves[name].get_color()
        weight = "bold" if colour == SKY else "normal"
        text = axes.text(0, 0, name, color=colour, weight=weight, fontsize=9, transform=None, va="bottom", ha="left")
        size = _box(text)
        place = _place(own, rivals, every, (size[2] - size[0], size[3] - size[1]), inside, taken, unit)
        if place is None:
            for artist in set(axes.get_children()) - before:
                artist.remove()
            return list(names)
        box, anchor = place
        text.set_transform(axes.transData)
        text.set_position(tuple(axes.transData.inverted().transform(box[:2])))
        taken.append(box)
        _lead(axes, box, anchor, str(text.get_color()), unit)
    return [name for name in names if name not in named]


@dataclass(frozen=True)
class _Rival:
    """Another named curve.

    Attributes:
        points: Of it, in pixels.
        may_share: Whether a name may stand where both are: colours tell whose it is, or they are the same everywhere.
    """

    points: np.ndarray
    may_share: bool


def _rival(own: Line2D, other: Line2D, drawn: Mapping[Line2D, np.ndarray], unit: float) -> _Rival:
    points, some = drawn[other], drawn[own][:: max(len(drawn[own]) // 20, 1)]
    apart = max(float(np.hypot(*(points - one).T).min()) for one in some)
    return _Rival(points, not same_color(own.get_color(), other.get_color()) or apart <= _SAME * unit)


def _pixels(axes: Axes, line: Line2D) -> np.ndarray:
    """Points along a line as it is drawn, a few pixels from each other."""
    if line.get_transform() != axes.transData:
        return np.empty((0, 2))
    corners = axes.transData.transform(np.column_stack(line.get_data(orig=False)).astype(float))
    corners = corners[np.isfinite(corners).all(axis=1)]
    if len(corners) < 2 or line.get_linestyle() in ("None", "none", " ", ""):
        return corners
    lengths = np.hypot(*np.diff(corners, axis=0).T)
    along = np.concatenate([[0.0], lengths.cumsum()])
    steps = np.linspace(0, along[-1], max(int(along[-1] / 3), 2))
    return np.column_stack([np.interp(steps, along, corners[:, k]) for k in (0, 1)])


def _box(text: Text) -> Box:
    extent = text.get_window_extent()
    return extent.x0, extent.y0, extent.x1, extent.y1


def _place(
    own: np.ndarray,
    rivals: Sequence[_Rival],
    every: np.ndarray,
    size: tuple[float, float],
    inside: Box,
    taken: Sequence[Box],
    unit: float,
) -> tuple[Box, tuple[float, float]] | None:
    """The nearest free box, where the curve is alone if it is anywhere, and the point of the curve beside it."""
    for alone in (True, False):
        for distance in _DISTANCES:
            for box, anchor in _candidates(own, size, distance * unit):
                if not _within(box, inside) or any(_overlap(box, other, _GAP * unit) for other in taken):
                    continue
                if _distances(every, box).min() >= _GAP * unit and _belongs(box, own, rivals, unit, alone):
                    return box, anchor
    return None


def _candidates(
    own: np.ndarray, size: tuple[float, float], distance: float
) -> Iterator[tuple[Box, tuple[float, float]]]:
    """Boxes at this distance, above the curve first."""
    wide, high = size
    for x, y in _DIRECTIONS:
        for share in _PLACES:
            px, py = own[int(share * (len(own) - 1))]
            left = px + (x - 1) * wide / 2 + x * distance
            low = py + (y - 1) * high / 2 + y * distance
            yield (left, low, left + wide, low + high), (float(px), float(py))


def _within(box: Box, frame: Box) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _overlap(one: Box, other: Box, gap: float) -> bool:
    return one[0] < other[2] + gap and other[0] < one[2] + gap and one[1] < other[3] + gap and other[1] < one[3] + gap


def _distances(points: np.ndarray, box: Box) -> np.ndarray:
    """From every point to a box; zero inside."""
    x = np.maximum(np.maximum(box[0] - points[:, 0], points[:, 0] - box[2]), 0)
    y = np.maximum(np.maximum(box[1] - points[:, 1], points[:, 1] - box[3]), 0)
    return np.hypot(x, y)


def _belongs(box: Box, own: np.ndarray, rivals: Sequence[_Rival], unit: float, alone: bool) -> bool:
    """Whether no other named curve is nearly as near to a name, unless the two are in the same place there."""
    distances = _distances(own, box)
    point, room = own[int(distances.argmin())], _SAME * unit if alone else 0.0
    for rival in rivals:
        apart = np.hypot(*(rival.points - point).T).min() > _SAME * unit
        near = _distances(rival.points, box).min() < 1.5 * distances.min() + room
        if near and (alone or apart or not rival.may_share):
            return False
    return True


def _lead(axes: Axes, box: Box, anchor: tuple[float, float], colour: str, unit: float) -> None:
    """A thin line from a name to its curve, where it stands away from it."""
    x, y = min(max(anchor[0], box[0]), box[2]), min(max(anchor[1], box[1]), box[3])
    if np.hypot(x - anchor[0], y - anchor[1]) > _FAR * unit:
        ends = axes.transData.inverted().transform([(x, y), anchor])
        axes.plot(*ends.T, color=colour, linewidth=0.7, scalex=False, scaley=False, zorder=1)
