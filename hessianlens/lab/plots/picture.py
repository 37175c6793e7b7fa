"""A picture: a drawing with the words below it, and how it becomes files."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hessianlens.errors import InputError
from hessianlens.files import write_whole
from hessianlens.lab.plots.apart import each_panel
from hessianlens.lab.plots.style import styled, to_svg


@dataclass(frozen=True)
class Frame:
    """One of several drawings that are shown in turn, at one place.

    Attributes:
        label: What distinguishes it, e.g. "temperature 0.1".
        figure: The drawing, with the size, panels and axes of all other frames.
    """

    label: str
    figure: Figure


@dataclass(frozen=True)
class Picture:
    """One drawing of a result.

    Attributes:
        name: Unique within its figure.
        figure: The drawing; where there are frames, it says by itself what they show together.
        caption: What lines, colours and axes mean.
        frames: What a slider shows, in its order; empty for a picture that stands still.
    """

    name: str
    figure: Figure
    caption: str
    frames: tuple[Frame, ...] = ()


def panel_svgs(figure: Figure, name: str, description: str) -> list[str]:
    """Every panel of a figure as an inline SVG element of its own: 346 CSS pixels wide, no text below 12.

    `hessianlens.lab.plots.apart.each_panel` says what a panel is and how it is made to stand alone.

    Args:
        figure: Of a picture, or of a frame.
        name: Unique on the page; the panels' ids begin with it and a number.
        description: Read out in place of a drawing; the panel's title follows it.

    >>> from hessianlens.lab.plots.style import panels
    >>> with panels(2) as (figure, (left, right)):
    ...     titles = left.set_title("one"), right.set_title("two")
    >>> [svg[: svg.index(" style")] for svg in panel_svgs(figure, "a", "Both")]
    ['<svg role="img" aria-label="Both: one"', '<svg role="img" aria-label="Both: two"']
    """
    numbers = count(1)

    def svg(panel: Figure) -> str:
        titles = [axes.get_title("left") or axes.get_title() for axes in panel.axes if axes.get_visible()]
        said = " ".join(filter(None, titles)).replace("\n", " ").replace("$", "")
        return to_svg(
            panel, f"{name}-{next(numbers)}", escape(": ".join(filter(None, (description, said))), quote=True)
        )

    return each_panel(figure, svg)


_DPI = 200
_METADATA: Mapping[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
"""Neither times nor versions: the same numbers give the same bytes."""


def save(figure: Figure, folder: Path, name: str) -> tuple[Path, ...]:
    """Write `name`.png (200 dpi), .svg and .pdf into a folder, which is made if need be.

    Args:
        figure: What to write.
        folder: Where to.
        name: File name without ending.

    Returns:
        The files.
    """
    paths = tuple(folder / f"{name}.{ending}" for ending in _METADATA)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            for path, metadata in zip(paths, _METADATA.values(), strict=True):
                drawn = io.BytesIO()
                figure.savefig(drawn, format=path.suffix[1:], dpi=_DPI, metadata=metadata)
                write_whole(path, drawn.getvalue())
    except OSError as error:
        raise InputError(
            f"folder: cannot write to {folder} ({error.strerror}); give a folder you may write."
        ) from error
    return paths
