"""The Hessian as a picture: the size of every entry, with the borders and names of its blocks."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import Normalize

from hessianlab.layer_page.facts import LayerFacts
from hessianlab.plots.charts import block_map, log_colour_bar, log_scale, mark_zero_blocks
from hessianlab.plots.style import panel, to_svg

_TITLES = {"full": "Full", "outer": "Outer product", "functional": "Functional"}


def heat_maps(facts: LayerFacts) -> dict[str, str]:
    """One map a part on a common colour scale; entries that are exactly zero stay blank."""
    with np.errstate(divide="ignore"):
        logs = {part: np.log10(np.abs(facts.matrices[part])) for part in _TITLES}
    scale = log_scale(list(logs.values()))
    return {f"heat-{part}": _map(facts, part, logs[part], scale) for part in _TITLES}


def _map(facts: LayerFacts, part: str, logs: np.ndarray, scale: Normalize) -> str:
    config = facts.config
    sizes = {"Q": config.d_model * config.d_k, "K": config.d_model * config.d_k, "V": config.d_model**2}
    with panel(3.6, 4.1) as (figure, axes):
        image = block_map(axes, logs, [f"$W_{name}$" for name in sizes], list(sizes.values()), scale)
        mark_zero_blocks(axes, logs, list(sizes.values()))
        for label in axes.get_yticklabels():
            label.set(rotation=90, va="center")
        axes.set_title(_TITLES[part], pad=20)
        log_colour_bar(figure, axes, image, "|entry| (loss / weight²)")
        return to_svg(figure, f"heat-{part}", f"Absolute entries of the {part} Hessian, by block")
