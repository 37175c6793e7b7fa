"""Figures taken apart: every panel alone, with what it shared, and with text that can be read on a phone."""

from __future__ import annotations

import re

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from hessianlab.plots.single_panels import LEAST_POINTS, NARROW, each_panel, panel_svgs
from hessianlab.plots.style import figure_style, panels


def shared_figure() -> Figure:
    """Two by two, with one legend and labels at the edges only."""
    with panels(2, 2, sharex=True, sharey=True) as (figure, all_axes):
        for n, axes in enumerate(all_axes):
            axes.plot([1, 2], [n, n + 1], label="a line")
            axes.set_title(f"panel {n}", size=6)
        all_axes[2].set_xlabel("left scale")
        all_axes[3].set_xlabel("right scale")
        all_axes[0].set_ylabel("upper norm")
        all_axes[2].set_ylabel("lower norm")
        figure.legend(*all_axes[0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def shown(panel: Figure) -> dict[str, object]:
    (axes,) = [axes for axes in panel.axes if axes.get_visible()]
    panel.draw_without_rendering()
    ticks = [label for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels() if label.get_visible()]
    texts = [text for text in axes.findobj(Text) if text.get_text() and text.get_visible()]
    return {
        "title": axes.get_title("left"),
        "labels": (axes.get_xlabel(), axes.get_ylabel()),
        "ticks": len([label for label in ticks if label.get_text()]),
        "names": [text.get_text() for text in axes.texts],
        "smallest": min(text.get_fontsize() for text in texts),
        "width": panel.get_size_inches()[0],
        "line": axes.lines[0].get_ydata()[0],
    }


def test_every_panel_has_what_it_shared_with_its_neighbours() -> None:
    found = each_panel(shared_figure(), shown)
    assert [own["title"] for own in found] == [f"panel {n}" for n in range(4)]
    assert [own["line"] for own in found] == [0, 1, 2, 3]
    assert [own["labels"] for own in found] == [
        (x, y) for y in ("upper norm", "lower norm") for x in ("left scale", "right scale")
    ]
    assert all(own["ticks"] > 4 and own["names"] == ["a line"] and own["width"] == NARROW for own in found)
    assert min(own["smallest"] for own in found) >= LEAST_POINTS


def test_a_strip_and_a_colour_bar_stay_with_their_panel() -> None:
    with figure_style():
        figure = Figure(figsize=(8, 5), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=(3, 1))
        above, strip, image = (figure.add_subplot(grid[place]) for place in ((0, 0), (1, 0), (slice(2), 1)))
        above.set_title("curves")
        image.set_title("map")
        figure.colorbar(image.imshow(np.eye(3)), ax=image, label="size")
        strip.set_xlabel("scale")

    def seen(panel: Figure) -> tuple[list[Axes], float]:
        return [axes for axes in panel.axes if axes.get_visible()], panel.get_size_inches()[1]

    (curves, height), (image_and_bar, _) = each_panel(figure, seen)
    assert [len(axes) for axes in (curves, image_and_bar)] == [2, 2]
    assert curves[1].get_xlabel() == "scale" and image_and_bar[1].get_ylabel() == "size"
    assert height == 5 * NARROW / 4


def test_a_long_label_of_a_colour_bar_stays_inside() -> None:
    with panels(1, width=7.0) as (figure, (axes,)):
        label = "absolute entry (loss / weight²), the largest of every tile of 12 × 12 entries"
        bar = figure.colorbar(axes.imshow(np.eye(3)), ax=axes, orientation="horizontal", label=label)

    def edges(panel: Figure) -> tuple[float, float]:
        panel.draw_without_rendering()
        box = bar.ax.xaxis.label.get_window_extent()
        return box.x0, panel.bbox.width - box.x1

    ((left, right),) = each_panel(figure, edges)
    assert left >= 0 and right >= 0


def test_long_titles_are_broken_and_stay_inside() -> None:
    with panels(1, width=7.0) as (figure, (axes,)):
        axes.set_title("A title that has far more words than a phone has room for in one line")
        axes.set_xlabel("an equally long label below the horizontal axis, with its unit (loss / weight²)")

    def edges(panel: Figure) -> list[tuple[float, float, str]]:
        panel.draw_without_rendering()
        (own,) = panel.axes
        boxes = [(text.get_window_extent(), text.get_text()) for text in (own._left_title, own.xaxis.label)]
        return [(box.x0, panel.bbox.width - box.x1, text) for box, text in boxes]

    (found,) = each_panel(figure, edges)
    assert all(left >= 0 and right >= 0 and "\n" in text for left, right, text in found), found


def test_svgs_are_named_apart_and_no_text_is_below_twelve_pixels() -> None:
    svgs = panel_svgs(shared_figure(), "fig", "The best")
    assert len(svgs) == 4
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in svgs]
    assert not set.intersection(*ids) and all(
        all(i.startswith(f"fig-{n}-") for i in own) for n, own in enumerate(ids, 1)
    )
    assert 'aria-label="The best: panel 3"' in svgs[3]
    for svg in svgs:
        points = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", svg)]
        natural = re.search(r"max-width:(\d+)px", svg)
        view = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        assert natural and view and points and "DejaVu" not in svg
        assert min(points) * float(natural[1]) / float(view[1]) >= 12 - 0.05
        assert float(natural[1]) <= 350


def test_the_title_of_a_map_stays_inside() -> None:
    with panels(1, width=6.6, height=7.4) as (figure, (axes,)):
        bar = axes.imshow(np.eye(3))
        figure.colorbar(bar, ax=axes, orientation="horizontal", label="size")
        axes.set_xticks(range(3), ["embedding", "b", "unembedding"], rotation=90)
        axes.tick_params(labeltop=True, labelbottom=False)
        axes.set_title("A map")
    (svg,) = panel_svgs(figure, "map", "It")
    (height,) = re.findall(r' y="(-?[\d.]+)"[^>]*>A map</text>', svg)
    assert 5 < float(height) < 40
