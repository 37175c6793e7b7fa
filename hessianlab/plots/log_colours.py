"""The entries of a matrix as colours on a logarithmic scale, with the borders and names of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from hessianlab.plots.style import MUTED
from hessianlab.wording import power_of_ten

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


def mark_zero_blocks(axes: Axes, logs: np.ndarray, sizes: Sequence[int]) -> None:
    """Write "exactly zero" into every block without a non-zero entry."""
    ends = np.cumsum(sizes)
    centres = ends - np.array(sizes) / 2 - 0.5
    blocks = [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
    for y, rows in zip(centres, blocks, strict=True):
        for x, columns in zip(centres, blocks, strict=True):
            if not np.isfinite(logs[rows, columns]).any():
                axes.text(x, y, "exactly zero", color=MUTED, ha="center", va="center")


def log_colour_bar(figure: Figure, axes: Axes, image: AxesImage, label: str) -> None:
    """A bar below the map, labelled at whole powers of ten."""
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", pad=0.03, extend="min", aspect=30)
    low, high = image.get_clim()
    ticks = np.arange(np.ceil(low), high + 1e-9)
    bar.set_ticks(list(ticks), labels=[power_of_ten(t) for t in ticks])
    bar.set_label(label)
