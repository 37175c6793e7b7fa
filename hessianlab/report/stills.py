"""The static pictures of the story: what stands in a scene's place without script and on paper, drawn from results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.claims.trained import StudyRecord
from hessianlab.experiments.statistics import choices, geometric_mean, numbers, select
from hessianlab.figures.presentation.activation_scales import draw_ratio_curves
from hessianlab.figures.presentation.activations import drawn_ratios, kinds, ratios
from hessianlab.figures.presentation.entropy import curve
from hessianlab.figures.presentation.growth import depth_exponents
from hessianlab.growth.series import SeriesKey, growth_series
from hessianlab.plots.style import (
    FUNCTIONAL,
    GAUSS_NEWTON,
    INK,
    KINDS,
    MUTED,
    NONE,
    OBJECTS,
    PURPLE,
    THICK,
    log_axis,
    panels,
)
from hessianlab.report.contents import Contents
from hessianlab.wording import about, activation_in_words, percent

Still = Callable[[Contents], Figure | None]

NARROW = 3.6
"""Inches: a phone's column; a wider page scales the picture and its text up."""

ARTICLE_SCORES = {"cat": 2.8, "sat": 1.2, "on": 0.5, "the": 3.1}
"""The words and scores of the article on softmax: the running example."""


def _named(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    colour: str,
    offset: tuple[float, float] = (4, 4),
    side: str = "left",
) -> None:
    """A name beside a curve, in its colour, in place of a legend."""
    place: Any = {"textcoords": "offset points", "annotation_clip": False, "ha": side}
    axes.annotate(text, at, offset, color=colour, weight="bold", **place)


def hero(contents: Contents, width: float = NARROW, height: float = 3.4) -> Figure | None:
    """Value over query against sigma, a line per activation."""
    curves = contents.ratio_curves()
    if not curves:
        return None
    with panels(1, width=width, height=height) as (figure, (axes,)):
        draw_ratio_curves(axes, curves, about)
        axes.set_ylabel("value over query")
    return figure


def wide_hero(contents: Contents) -> Figure | None:
    """The same for a wide page."""
    return hero(contents, 7.4, 4.7)


def block_sizes(contents: Contents) -> Figure | None:
    """Norms of the diagonal blocks with softmax at initialisation, as areas of squares on the diagonal."""
    result = contents.results.get("activation_scales")
    if result is None or "softmax" not in choices(result, "activation"):
        return None
    sizes = {
        block: geometric_mean(numbers(select(result, activation="softmax", block=block, factor=1.0), "norm"))
        for block in ("query", "key", "value")
    }
    largest = max(sizes.values())
    with panels(1, width=NARROW, height=3.0) as (figure, (axes,)):
        for place, (block, size) in enumerate(sizes.items()):
            side = 0.92 * (size / largest) ** 0.5
            axes.add_patch(_square(place, side, OBJECTS[block]))
            _named(
                axes,
                f"{block[0].upper()}: {about(size / largest)}",
                (place - 0.42, 2.5 - place),
                OBJECTS[block],
                (0, 6),
            )
        axes.set(xlim=(-0.6, 2.9), ylim=(-0.6, 3.1), aspect="equal")
        axes.set_axis_off()
        axes.set_title("Norms of the blocks, as areas")
    return figure


def _square(place: int, side: float, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place - side / 2, 2 - place - side / 2), side, side, color=colour, linewidth=0)


def score_row(_contents: Contents) -> Figure:
    """The article's row of scores, and scores of zero, under three activations."""
    import torch

    from hessianlens.attention.activations import as_activation

    names = ("softmax", "sigmoid", "tanh")
    rows = {"scores 2.8, 1.2, 0.5, 3.1": list(ARTICLE_SCORES.values()), "all scores zero": [0.0] * len(ARTICLE_SCORES)}
    with panels(1, 2, width=NARROW, height=1.9) as (figure, all_axes):
        for axes, (title, scores) in zip(all_axes, rows.items(), strict=True):
            given = torch.tensor([[scores]], dtype=torch.float64)
            for group, name in enumerate(names):
                weights = as_activation(name).value(given, torch.ones_like(given, dtype=torch.bool))[0, 0].numpy()
                at = group * (len(scores) + 1) + np.arange(len(scores))
                axes.bar(at, weights, color=PURPLE if name != "tanh" else INK, width=0.8)
                for x, weight in zip(at, weights, strict=True):
                    axes.annotate(
                        _decimals(float(weight)), (x, weight), (0, 2), textcoords="offset points", ha="center", size=9
                    )
            axes.set_xticks([group * 5 + 1.5 for group in range(len(names))], names)
            axes.set(ylim=(0, 1.25), yticks=[0, 1])
            axes.tick_params(axis="x", length=0)
            axes.grid(visible=False)
            axes.set_title(title)
    return figure


def _decimals(weight: float) -> str:
    """Two decimals without the zero before them, which leaves room for the next one."""
    return f"{weight:.2f}".removeprefix("0").removesuffix(".00") or "0"


def sharpening(contents: Contents) -> Figure | None:
    """Norms of three blocks from uniform to one-hot attention."""
    result = contents.results.get("moment_strata")
    if result is None:
        return None
    lines = {
        "value block: mean": ("outer VV", OBJECTS["value"], GAUSS_NEWTON),
        "query, Gauss-Newton: covariance": ("outer QQ", OBJECTS["query"], GAUSS_NEWTON),
        "query, functional: skewness": ("functional QQ", OBJECTS["query"], FUNCTIONAL),
    }
    entropy = np.median(curve(result, "entropy", "share_of_uniform"), axis=0)
    with panels(1, width=NARROW, height=3.2) as (figure, (axes,)):
        log_axis(axes, "y")
        for number, (name, (quantity, colour, style)) in enumerate(lines.items()):
            values = curve(result, quantity)
            middle = np.median(values / values[:, :1], axis=0)
            axes.plot(1 - entropy, middle, color=colour, linestyle=style, linewidth=2.2)
            axes.text(0.04, 0.30 - 0.1 * number, name, color=colour, weight="bold", transform=axes.transAxes, size=9)
        axes.set_ylim(1e-4, 1e2)
        axes.set_xlabel("sharpness: 0 uniform, 1 one token")
        axes.set_title("Norm, relative to uniform attention")
    return figure


def slopes(contents: Contents) -> Figure | None:
    """Norms of the query and value blocks against sigma in one Transformer."""
    result = contents.results.get("fig3a")
    if result is None:
        return None
    series = growth_series(result)
    lines = (
        ("value: 2", "value", "full", "-", THICK),
        ("query: 5", "query", "full", "-", THICK),
        ("Gauss-Newton: 6", "query", "outer", GAUSS_NEWTON, 1.5),
    )
    with panels(1, width=NARROW, height=3.2) as (figure, (axes,)):
        for axis in "xy":
            log_axis(axes, axis)
        for name, block, part, style, width in lines:
            one = series[SeriesKey(0, 1, 0, block, part)]
            axes.plot(one.sigma, one.mean, color=OBJECTS[block], linestyle=style, linewidth=width)
            at, offset, side = (4, (12, -8), "left") if part == "outer" else (4, (-4, 8), "right")
            _named(axes, name, (one.sigma[at], one.mean[at]), OBJECTS[block], offset, side)
        axes.set_xlabel("scale of the tokens σ")
        axes.set_title("Norm of the blocks, and counted slopes")
    return figure


def by_activation(contents: Contents) -> Figure | None:
    """Value over query for every activation, grouped by a(0)."""
    result = contents.results.get("activation_offset")
    if result is None or "transformer" not in choices(result, "place"):
        return None
    found, kind = ratios(result, "transformer"), kinds(result)
    order = sorted(found, key=lambda name: (list(KINDS).index(kind[name]), -found[name]))
    with panels(1, width=NARROW, height=0.28 * len(order) + 1.3) as (figure, (axes,)):
        log_axis(axes, "x", most=5)
        for y, name in enumerate(order):
            colour, marker = KINDS[kind[name]]
            draws = drawn_ratios(result, "transformer", name)
            axes.plot([draws.min(), draws.max()], [y, y], color=colour, linewidth=1.6)
            axes.plot([found[name]], [y], marker, color=colour, markersize=7)
            _named(axes, f"{about(found[name])}×", (draws.max(), y), colour, (6, -4))
        _headings(axes, order, kind)
        axes.axvline(1, color=MUTED, linewidth=1, zorder=0)
        axes.set_yticks(range(len(order)), [activation_in_words(name) for name in order])
        axes.set_ylim(len(order) - 0.4, -0.7)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * 60)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("value over query (1: alike)")
    return figure


def _headings(axes: Axes, order: Sequence[str], kind: Any) -> None:
    """The kind of every group beside its middle, on the side where it has no marks."""
    for which, (colour, _) in KINDS.items():
        own = [y for y, name in enumerate(order) if kind[name] == which]
        if own:
            x, side = (0.98, "right") if which == NONE else (0.04, "left")
            place: Any = {"ha": side, "va": "center", "weight": "bold", "size": 9}
            axes.text(x, float(np.mean(own)), which, color=colour, transform=axes.get_yaxis_transform(), **place)


def negative_shares(contents: Contents) -> Figure | None:
    """The share of negative curvature with two matrices and with one."""
    result = contents.results.get("parameterisations")
    if result is None:
        return None
    shares = {
        words: numbers(select(result, parameters=name, part="full"), "negative_share")
        for name, words in (("dual", "two matrices"), ("single", "one matrix"))
    }
    with panels(1, width=NARROW, height=1.7) as (figure, (axes,)):
        for y, found in enumerate(shares.values()):
            mean = float(found.mean())
            axes.plot([found.min(), found.max()], [y, y], color=INK, linewidth=1.6)
            axes.plot([mean], [y], "v", color=INK, markersize=8)
            _named(axes, percent(mean), (mean, y), INK, (-8, 8))
        axes.set(xlim=(0, 0.7), ylim=(1.5, -0.7))
        axes.set_yticks(range(len(shares)), list(shares))
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value))
        axes.set_title("Negative share of the curvature")
    return figure


def powers_by_depth(contents: Contents) -> Figure | None:
    """The power of sigma by depth, MLPs against attention."""
    result = contents.results.get("depth_growth")
    if result is None:
        return None
    found = depth_exponents(result)
    with panels(1, width=NARROW, height=2.6) as (figure, (axes,)):
        for family, colour, marker in (("linear attention", INK, "s"), ("linear MLP", MUTED, "o")):
            own = [one for one in found if one.family == family and one.slope.measured is not None]
            measured = [float(one.slope.measured or 0) for one in own]
            axes.plot([one.depth for one in own], measured, marker=marker, color=colour, markersize=7)
            for one, value in zip(own, measured, strict=True):
                _named(axes, f"{value:.0f}", (one.depth, value), colour, (-4, 9))
            _named(axes, family, (own[0].depth, measured[0]), colour, (14, -16 if family == "linear MLP" else -8))
        axes.set_yscale("log")
        axes.set(ylim=(0.7, 150), xlim=(0.7, 3.4), xticks=sorted({one.depth for one in found}), yticks=[])
        axes.minorticks_off()
        axes.set_xlabel("layers")
        axes.set_title("Power of σ, by depth")
    return figure


def atlas(_contents: Contents) -> Figure | None:
    """Values over queries by layer in a trained language model, recorded."""
    chart = StudyRecord("study_atlas").chart
    panel = next((one for one in chart.panels if one.title == "values over queries"), None) if chart else None
    if panel is None:
        return None
    with panels(1, width=NARROW, height=2.8) as (figure, (axes,)):
        log_axis(axes, "y")
        for one in panel.series:
            colour = INK if one.name == "trained" else MUTED
            axes.fill_between(one.x, one.low, one.high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(one.x, one.mean, color=colour, linewidth=2.2, linestyle="-" if one.name == "trained" else "--")
            middle = len(one.x) // 2
            _named(axes, f"{one.name} weights", (one.x[middle], one.mean[middle]), colour, (0, 9))
        axes.axhline(1, color=MUTED, linewidth=1, zorder=0)
        axes.set_xlabel("layer")
        axes.set_ylabel("values over queries")
        axes.set_title("Root mean square eigenvalues")
    return figure
