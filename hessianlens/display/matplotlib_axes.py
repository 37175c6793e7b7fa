"""A chart on matplotlib's axes."""

from __future__ import annotations

from textwrap import fill
from typing import Any

from hessianlens.display.chart import Band, Bar, ChartModel, HeatMap, Mark, Markers, Polyline, Segments, Words, short
from hessianlens.display.markup import PALETTE

_PIXELS_PER_INCH = 66.0


def light(name: str) -> str:
    """A colour of the palette, for light ground."""
    return PALETTE[name][0]


def figure_size(chart: ChartModel) -> tuple[float, float]:
    """Inches of a figure of its own, in proportion to the size in a page."""
    names = max((len(text) for _, text in chart.y.ticks), default=0)
    bar = 80 if any(isinstance(mark, HeatMap) for mark in chart.marks) else 20
    legend = 22 * len(chart.legend) if chart.legend_below and chart.y.named is not None else 0
    wide, tall = chart.x.length + 7 * names + bar, chart.y.length + 60 + legend
    return min(max(wide / _PIXELS_PER_INCH, 4.6), 12.0), min(max(tall / _PIXELS_PER_INCH, 1.4), 12.0)


def draw(chart: ChartModel, ax: Any) -> None:
    """All marks, then axes and legend."""
    for mark in chart.marks:
        _draw_mark(mark, chart, ax)
    for axis, name in ((chart.x, "x"), (chart.y, "y")):
        if axis.log:
            getattr(ax, f"set_{name}scale")("log")
        getattr(ax, f"set_{name}lim")(axis.low, axis.high)
        if axis.named is not None:
            getattr(ax, f"set_{name}ticks")([at for at, _ in axis.named], [text for _, text in axis.named])
            ax.tick_params(axis=name, which="minor", length=0)
    if chart.x.opposite:
        ax.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False)
    mapped = any(isinstance(mark, HeatMap) for mark in chart.marks)
    ax.set_xlabel(chart.x.label or ("" if mapped else fill(chart.caption, 60)))
    ax.set_ylabel(chart.y.label)
    if chart.legend:
        _draw_legend(chart, ax)


def _draw_mark(mark: Mark, chart: ChartModel, ax: Any) -> None:
    x, y = chart.x, chart.y
    match mark:
        case Markers():
            places = [x.clamp(v) for v in mark.x], [y.clamp(v) for v in mark.y]
            colours = {"color": light(mark.colour), "fillstyle": "full" if mark.filled else "none"}
            ax.plot(*places, "o", markersize=1.4 * mark.radius, clip_on=False, **colours)
        case Polyline():
            style = "--" if mark.dashes else "-"
            ax.plot(mark.x, mark.y, color=light(mark.colour), linewidth=mark.width, linestyle=style)
        case Segments():
            ends = [[list(map(x.clamp, mark.x)), list(map(x.clamp, mark.x_end))]]
            ends += [[list(map(y.clamp, mark.y)), list(map(y.clamp, mark.y_end))]]
            ax.plot(*ends, color=light(mark.colour), linewidth=mark.width, alpha=mark.opacity)
        case Band():
            edges = [[y.clamp(v) for v in side] for side in (mark.low, mark.high)]
            ax.fill_between(mark.x, *edges, color=light(mark.colour), alpha=0.17, linewidth=0)
        case Bar():
            size = mark.x_end - mark.x, mark.y_end - mark.y
            ax.bar([mark.x], [size[1]], size[0], [mark.y], align="edge", color=light(mark.colour))
        case Words():
            aside, side = (-5, "right") if mark.left else (5, "left")
            offset = {"xytext": (aside, 3), "textcoords": "offset points", "ha": side}
            ax.annotate(mark.text, (mark.x, mark.y), fontsize="small", **offset)
        case HeatMap():
            _draw_heat_map(mark, chart.caption, ax)


def _draw_heat_map(mark: HeatMap, label: str, ax: Any) -> None:
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    top = mark.largest
    blank = [[mark.level(v) is None and not mark.signed for v in row] for row in mark.values]
    shown = [
        [float("nan") if none or v is None else v if mark.signed else abs(v) for v, none in zip(row, gaps, strict=True)]
        for row, gaps in zip(mark.values, blank, strict=True)
    ]
    if mark.signed:
        norm: Any = SymLogNorm(mark.least, vmin=-top, vmax=top)
    else:
        norm = LogNorm(mark.least, top) if mark.log else Normalize(0.0, top)
    colours = "RdBu" if mark.signed else "Blues"
    image = ax.imshow(shown, norm=norm, cmap=colours, aspect="auto", interpolation="nearest")
    bar = ax.figure.colorbar(image, ax=ax, label=label)
    if mark.signed:
        bar.set_ticks([-top, 0.0, top], labels=[short(-top), "0", short(top)])
        bar.minorticks_off()
    if mark.written:
        for i, row in enumerate(mark.values):
            for j, value in enumerate(row):
                dark = (mark.level(value) or 0.0) > 0.55
                ax.text(j, i, short(value), ha="center", va="center", color="white" if dark else light("ink"))


def _draw_legend(chart: ChartModel, ax: Any) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    for key in chart.legend:
        colour = light(key.colour)
        if key.shape == "square":
            handles.append(Patch(color=colour, label=key.name))
        elif key.shape == "dot":
            handles.append(Line2D([], [], linestyle="", marker="o", color=colour, label=key.name))
        else:
            handles.append(
                Line2D([], [], linestyle="--" if key.shape == "dashes" else "-", color=colour, label=key.name)
            )
    bare = chart.legend_below and not chart.x.ticks
    if bare:  # a bar without numbers beside it leaves room below
        ax.set_ylim(chart.y.low - 1.4 * (chart.y.high - chart.y.low), chart.y.high)
    place = {"loc": "lower left", "ncols": 2} if bare else {}
    ax.legend(handles=handles, fontsize="small", frameon=False, **place)
