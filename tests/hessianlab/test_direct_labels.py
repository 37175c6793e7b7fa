"""Names beside curves cover nothing and stand next to what they name; without room for all there is a legend."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.axes import Axes

from hessianlab.plots.direct_labels import label_curves
from hessianlab.plots.single_panels import each_panel
from hessianlab.plots.style import log_axis, panel, panels


def drawn_pixels(axes: Axes, name: str) -> np.ndarray:
    line = next(line for line in axes.get_lines() if line.get_label() == name)
    ends = axes.transData.transform(np.column_stack(line.get_data()))
    share = np.linspace(0, len(ends) - 1, 800)
    return np.column_stack([np.interp(share, np.arange(len(ends)), ends[:, k]) for k in (0, 1)])


def distance(points: np.ndarray, box) -> float:
    x = np.maximum(np.maximum(box.x0 - points[:, 0], points[:, 0] - box.x1), 0)
    y = np.maximum(np.maximum(box.y0 - points[:, 1], points[:, 1] - box.y1), 0)
    return float(np.hypot(x, y).min())


@pytest.mark.parametrize("seed", range(6))
def test_names_cover_nothing_and_stand_nearest_to_their_own_curve(seed):
    draw = np.random.default_rng(seed)
    x = np.geomspace(0.01, 10, 12)
    with panel() as (figure, axes):
        for power in (2, 4, 6):
            axes.plot(x, draw.uniform(0.5, 2) * x**power, label=f"power {power}: {power}.00 ± 0.03")
        log_axis(axes, "x")
        log_axis(axes, "y")
        figure.get_layout_engine().execute(figure)
        names = [line.get_label() for line in axes.get_lines()]
        assert label_curves(axes, [*names, "no such curve"]) == ["no such curve"]
        boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
        frame = axes.get_window_extent()
        for name, box in boxes.items():
            gaps = {other: distance(drawn_pixels(axes, other), box) for other in names}
            assert min(gaps.values()) > 1 and gaps[name] <= min(gaps.values()) + 8
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
        assert not any(a.overlaps(b) for one, a in boxes.items() for two, b in boxes.items() if one < two)


def test_all_names_stay_in_the_legend_if_one_has_no_room():
    with panels(1) as (figure, (axes,)):
        axes.plot([0, 1], [0, 1], label="a name much longer than there is room for in a panel as narrow as a phone")
        axes.plot([0, 1], [1, 0], label="short")
        axes.set_title("two")
        axes.legend()

    def found(shown):
        legend = [text.get_text().replace("\n", " ")[:10] for one in shown.legends for text in one.get_texts()]
        return legend, [text.get_text() for text in shown.axes[0].texts]

    assert each_panel(figure, found) == [(["a name muc", "short"], [])]
