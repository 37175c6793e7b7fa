"""A picture: a drawing with the words below it, and how it becomes files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hessianlab.plots.style import figure_style
from hessianlab.results import Findings, Result
from hessianlens.errors import InputError
from hessianlens.files import write_whole


@dataclass(frozen=True)
class ResultPicture:
    """One drawing of a result.

    Attributes:
        name: Unique within its figure.
        figure: The drawing.
        caption: What lines, colours and axes mean.
        reading: What it shares with other pictures on how to read it; a page says that once.
        frame: What is special about it among pictures that a page shows one at a time; empty if it stands by itself.
        folded: What a page says in its place until it is asked for; empty if it is shown at once.
    """

    name: str
    figure: Figure
    caption: str
    reading: str = ""
    frame: str = ""
    folded: str = ""


@dataclass(frozen=True)
class Presentation:
    """How results of an experiment are read and drawn.

    Attributes:
        findings: What the numbers say.
        draw: Result and published means, or None, to its pictures.
    """

    findings: Findings
    draw: Callable[[Result, Any], list[ResultPicture]]


def captioned(
    pictures: Mapping[str, tuple[Callable[[Result], Figure], str]],
) -> Callable[[Result, Any], list[ResultPicture]]:
    """What draws pictures by their names, each from the result alone and with its caption."""

    def draw_all(result: Result, _reference: object = None) -> list[ResultPicture]:
        return [ResultPicture(name, draw(result), caption) for name, (draw, caption) in pictures.items()]

    return draw_all


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
        with figure_style():
            for path, metadata in zip(paths, _METADATA.values(), strict=True):
                drawn = io.BytesIO()
                figure.savefig(drawn, format=path.suffix[1:], dpi=_DPI, metadata=metadata)
                write_whole(path, drawn.getvalue())
    except OSError as error:
        raise InputError(
            f"folder: cannot write to {folder} ({error.strerror}); give a folder you may write."
        ) from error
    return paths
