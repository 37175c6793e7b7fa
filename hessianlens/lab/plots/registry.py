"""Which pictures an experiment has, and how a picture becomes files."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hessianlens.errors import InputError
from hessianlens.files import write_whole
from hessianlens.lab.plots import (
    activation_growth,
    activations,
    heatmap,
    histogram,
    parameterisations,
    ranks,
    sharpness,
    spectrum,
    table1,
)
from hessianlens.lab.plots.style import styled
from hessianlens.lab.results import Result

DRAW: Mapping[str, Callable[[Result], dict[str, Figure]]] = {
    "fig1": lambda result: {
        "whole": heatmap.draw_map(result, "whole"),
        "attention": heatmap.draw_map(result, "attention"),
        "histogram": histogram.draw(result),
    },
    "fig4": lambda result: {"histogram": histogram.draw(result)},
    "table1": lambda result: {"table": table1.draw(result)},
    "activation_magnitudes": lambda result: {"sizes": activations.draw(result)},
    "activation_growth": lambda result: {
        "exponents": activation_growth.draw_exponents(result),
        "curves": activation_growth.draw_curves(result),
    },
    "moment_strata": lambda result: {"strata": sharpness.draw(result)},
    "paired_spectrum": lambda result: {"spectra": spectrum.draw_paired(result)},
    "rank_fraction": lambda result: {"ranks": ranks.draw(result)},
    "parameterisations": lambda result: {
        "spectra": spectrum.draw_parameterisations(result),
        "numbers": parameterisations.draw(result),
    },
}
"""By the experiment's name: its pictures by theirs."""

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
