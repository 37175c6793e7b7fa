"""The Hessian as a picture: the size of every entry, with the borders and names of its blocks."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, Normalize

from hessianlens.lab.layer_page.facts import LayerFacts
from hessianlens.lab.plots.style import MUTED, panel, power_of_ten, to_svg

_TITLES = {"full": "Full", "outer": "Outer product", "functional": "Functional"}
_LEVELS = 64
_LEAST_PERCENT = 2.0


def heat_maps(facts: LayerFacts) -> dict[str, str]:
    """One map a part on a common colour scale; entries that are exactly zero stay blank."""
    with np.errstate(divide="ignore"):
        logs = {part: np.log10(np.abs(facts.matrices[part])) for part in _TITLES}
    finite = np.concatenate([m[np.isfinite(m)] for m in logs.values()])
    scale = Normalize(float(np.percentile(finite, _LEAST_PERCENT)), float(finite.max()))
    return {f"heat-{part}": _map(facts, part, logs[part], scale) for part in _TITLES}


def _map(facts: LayerFacts, part: str, logs: np.ndarray, scale: Normalize) -> str:
    colours = ListedColormap(mpl.colormaps["viridis"](np.linspace(0, 1, _LEVELS))).with_extremes(bad=(0, 0, 0, 0))
    with panel(3.6, 4.1) as (figure, axes):
        shown = np.ma.masked_invalid(logs)
        # Few levels keep the embedded picture small; large matrices are averaged down instead of sampled.
        smooth = "nearest" if len(logs) <= 1024 else "auto"
        image = axes.imshow(shown, cmap=colours, norm=scale, interpolation=smooth, interpolation_stage="data")
        _block_borders(axes, facts, logs)
        axes.set_title(_TITLES[part], pad=20)
        bar = figure.colorbar(image, ax=axes, orientation="horizontal", pad=0.03, extend="min", aspect=30)
        ticks = np.arange(np.ceil(scale.vmin or 0), (scale.vmax or 0) + 1e-9)
        bar.set_ticks(list(ticks), labels=[power_of_ten(t) for t in ticks])
        bar.set_label("|entry| (loss / weight²)")
        return to_svg(figure, f"heat-{part}", f"Absolute entries of the {part} Hessian, by block")


def _block_borders(axes: Axes, facts: LayerFacts, logs: np.ndarray) -> None:
    config = facts.config
    sizes = {"Q": config.d_model * config.d_k, "K": config.d_model * config.d_k, "V": config.d_model**2}
    ends = np.cumsum(list(sizes.values()))
    centres = ends - np.array(list(sizes.values())) / 2 - 0.5
    for end in ends[:-1]:
        axes.axhline(end - 0.5, color="white", linewidth=1.4)
        axes.axvline(end - 0.5, color="white", linewidth=1.4)
    blocks = [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes.values(), strict=True)]
    for y, rows in zip(centres, blocks, strict=True):
        for x, columns in zip(centres, blocks, strict=True):
            if not np.isfinite(logs[rows, columns]).any():
                axes.text(x, y, "exactly 0", color=MUTED, ha="center", va="center")
    names = [f"$W_{name}$" for name in sizes]
    axes.set_xticks(centres, names)
    axes.set_yticks(centres, names, rotation=90, va="center")
    axes.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)
