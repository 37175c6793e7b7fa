"""Lines and numbers along the two axes of a picture."""

from __future__ import annotations

from hessianlens.display.markup import label, line
from hessianlens.display.scale import Scale


def ticked(across: Scale, up: Scale) -> list[str]:
    """A line across at every number of the upward axis, a stroke below at every number of the other.

    >>> len(ticked(Scale(0.0, 1.0, 0.0, 100.0), Scale(0.0, 1.0, 100.0, 0.0))) > 4
    True
    """
    left, right, bottom = across.start, across.stop, up.start
    parts = []
    for value, text in up.ticks(4):
        parts.append(line(left, up(value), right, up(value)))
        parts.append(label(left - 5, up(value) + 4, text, "end", "muted"))
    for value, text in across.ticks(4):
        parts.append(line(across(value), bottom, across(value), bottom + 4, "muted"))
        parts.append(label(across(value), bottom + 17, text, "middle", "muted"))
    return parts
