"""The drawings, from facts alone: each is one panel, so that a page can place them side by side or in a column."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from hessianlab.layer_page.facts import Growth, GrowthCurve, LayerFacts
from hessianlab.layer_page.heatmap import heat_maps
from hessianlab.plots.style import (
    BLUE,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    log_axis,
    panel,
    to_svg,
)

PART_COLOURS = {"outer": BLUE, "functional": ORANGE, "full": MUTED}
BLOCK_COLOURS = {"QQ": BLUE, "VV": RED, "VQ": GREEN, "QK": PURPLE}
DASHES = (0, (4, 2))
_LEAST_SHOWN = 1e-6


def draw(facts: LayerFacts) -> dict[str, str]:
    """Every figure of the page as inline SVG, by name."""
    figures = heat_maps(facts)
    figures["norms"] = block_bars(facts)
    for activation in dict.fromkeys(curve.activation for curve in facts.growth.curves):
        figures[f"growth-{activation}"] = growth_panel(facts.growth, activation)
    figures["pairs"] = pairs_panel(facts)
    figures["ranks"] = ranks_panel(facts)
    figures["sharpness-norms"] = sharpness_norms(facts)
    figures["sharpness-moments"] = sharpness_moments(facts)
    return figures


def block_bars(facts: LayerFacts) -> str:
    """Norms of the six distinct blocks, in three parts."""
    with panel(4.8, 3.6) as (figure, axes):
        labels = [f"{b.row}{b.column}" for b in facts.blocks]
        at, width = np.arange(len(labels)), 0.26
        for k, (part, colour) in enumerate(PART_COLOURS.items()):
            heights = [getattr(b, part) for b in facts.blocks]
            axes.bar(at + (k - 1) * width, heights, width * 0.92, color=colour, label=part)
            for x, height in zip(at, heights, strict=True):
                if height == 0:
                    axes.annotate("0", (x + (k - 1) * width, 0), (0, 2), textcoords="offset points", ha="center")
        axes.set_xticks(at, labels)
        axes.grid(axis="x", visible=False)
        axes.set_xlabel("block (row and column weight matrix)")
        axes.set_ylabel("Frobenius norm (loss / weight²)")
        axes.legend(ncols=3, loc="lower left", bbox_to_anchor=(-0.02, 1.0), columnspacing=1.2)
        return to_svg(figure, "norms", "Bars of the norms of all blocks, outer, functional and full")


def growth_panel(growth: Growth, activation: str) -> str:
    """Norms against the token scale for one activation."""
    with panel() as (figure, axes):
        for curve in growth.curves:
            if curve.activation == activation:
                _growth_line(axes, growth, curve)
        axes.axvspan(growth.fit_low, growth.fit_high, color=GRID, alpha=0.6, linewidth=0)
        log_axis(axes, "x")
        log_axis(axes, "y", most=7)
        axes.set_title(activation)
        axes.set_xlabel("token scale σ (dimensionless)")
        axes.set_ylabel("norm (loss / weight²)")
        return to_svg(figure, f"growth-{activation}", f"Block norms against the token scale for {activation}")


def _growth_line(axes: Axes, growth: Growth, curve: GrowthCurve) -> None:
    norms = _numbers(curve.norms)
    if np.nanmax(norms) > 0:
        norms[norms <= 0] = np.nan
        block = curve.row + curve.column
        # Some lines coincide: the outer QQ is wide and lies below, the dashes of QK fill the gaps of the others.
        style = "-" if curve.part == "outer" else (4 if block == "QK" else 0, (4, 4))
        width = 3.4 if (block, curve.part) == ("QQ", "outer") else 1.8
        axes.plot(growth.sigmas, norms, color=BLOCK_COLOURS[block], linestyle=style, linewidth=width)


def _numbers(values: tuple[float | None, ...]) -> np.ndarray:
    return np.array([np.nan if v is None else v for v in values])


def pairs_panel(facts: LayerFacts) -> str:
    """All eigenvalues of the T-functional Hessian, twice."""
    with panel() as (figure, axes):
        index = np.arange(1, len(facts.pairs.dense) + 1)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.plot(index, facts.pairs.dense, color=SKY, linewidth=6, label="dense matrix", solid_capstyle="butt")
        axes.plot(index, facts.pairs.closed, color=INK, linewidth=1.2, label="±λ closed form")
        axes.set_title("Eigenvalues in pairs")
        axes.set_xlabel("eigenvalue number, ascending")
        axes.set_ylabel("eigenvalue (loss / weight²)")
        axes.legend(loc="upper left")
        return to_svg(figure, "pairs", "Eigenvalues of the T-functional Hessian, closed form on dense matrix")


def ranks_panel(facts: LayerFacts) -> str:
    """Measured rank, bound and exact formula against the query width."""
    with panel() as (figure, axes):
        lengths = list(dict.fromkeys(r.length for r in facts.ranks))
        for length, colour in zip(lengths, (BLUE, RED), strict=False):
            rows = [r for r in facts.ranks if r.length == length]
            widths = [r.d_k for r in rows]
            if length == lengths[0]:
                axes.plot(widths, [r.bound for r in rows], color=GRID, linewidth=9, label="bound")
            if all(r.exact is not None for r in rows):
                axes.plot(
                    widths, [r.exact or 0 for r in rows], color=colour, linewidth=1.2, label=f"formula, L = {length}"
                )
            measured = [r.measured for r in rows]
            axes.plot(widths, measured, "o", color=colour, markersize=5, label=f"measured, L = {length}")
        top = max(r.bound for r in facts.ranks)
        axes.vlines(facts.config.d_model, 0, top, color=MUTED, linewidth=0.8)
        axes.annotate("d", (facts.config.d_model, 0), (3, 3), textcoords="offset points", color=MUTED)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylim(bottom=0, top=1.5 * top)
        axes.set_title("Rank of the T-outer-product part")
        axes.set_xlabel("query width $d_K$")
        axes.set_ylabel("rank")
        axes.legend(loc="upper left", ncols=2)
        return to_svg(figure, "ranks", "Rank of the T-outer-product Hessian against the query width")


def sharpness_norms(facts: LayerFacts) -> str:
    """Block norms against the scale of the query weights."""
    lines = (
        ("QQ outer", "outer_qq", BLUE, "-"),
        ("QQ functional", "functional_qq", ORANGE, DASHES),
        ("VV (outer only)", "outer_vv", RED, "-"),
    )
    with panel() as (figure, axes):
        scales = [s.scale for s in facts.sharpness]
        shown = np.concatenate([_column(facts, field) for _, field, _, _ in lines])
        top = np.nanmax(shown)
        for label, field, colour, style in lines:
            values = _column(facts, field)
            if np.nanmax(values) > 0:
                axes.plot(scales, np.where(values > 0, values, np.nan), color=colour, linestyle=style, label=label)
        _mark_layer(axes)
        log_axis(axes, "x")
        log_axis(axes, "y")
        axes.set_ylim(max(np.nanmin(shown[shown > 0]) / 2, _LEAST_SHOWN * top), 4 * top)
        axes.set_title("Block norms")
        axes.set_xlabel("factor on $W_Q$ (dimensionless)")
        axes.set_ylabel("norm (loss / weight²)")
        axes.legend(loc="lower left")
        return to_svg(figure, "sharpness-norms", "Norms of the QQ and VV blocks as the query weights grow")


def sharpness_moments(facts: LayerFacts) -> str:
    """Entropy and moments, each relative to its largest value."""
    lines = (
        ("entropy", "entropy", GREEN, "-"),
        ("‖M₂‖", "second_moment", BLUE, "-"),
        ("‖M₃‖ along the gradient", "third_moment", ORANGE, DASHES),
    )
    with panel() as (figure, axes):
        scales = [s.scale for s in facts.sharpness]
        for label, field, colour, style in lines:
            values = _column(facts, field)
            if np.isfinite(values).any() and np.nanmax(values) > 0:
                axes.plot(scales, values / np.nanmax(values), color=colour, linestyle=style, label=label)
        _mark_layer(axes)
        log_axis(axes, "x")
        axes.set_ylim(-0.04, 1.42)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.set_title("Entropy and moments")
        axes.set_xlabel("factor on $W_Q$ (dimensionless)")
        axes.set_ylabel("share of its largest value")
        axes.legend(loc="upper right")
        return to_svg(figure, "sharpness-moments", "Attention entropy and moments as the query weights grow")


def _mark_layer(axes: Axes) -> None:
    """A triangle on the horizontal axis at factor 1."""
    axes.plot([1], [0.02], "v", color=INK, markersize=6, transform=axes.get_xaxis_transform(), clip_on=False)


def _column(facts: LayerFacts, field: str) -> np.ndarray:
    return _numbers(tuple(getattr(s, field) for s in facts.sharpness))
