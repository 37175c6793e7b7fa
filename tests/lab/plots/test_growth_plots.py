"""Growth figures show every panel, line, exponent, guide and published point they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from hessianlens.lab.analysis.exponents import exponent_fits
from hessianlens.lab.analysis.reference import read_reference
from hessianlens.lab.experiments import fig3a, fig5, fig7, fig8
from hessianlens.lab.experiments.growth import GrowthConfig
from hessianlens.lab.plots.growth import draw
from hessianlens.lab.plots.growth_text import caption
from hessianlens.lab.plots.style import to_svg
from tests.lab.analysis.synthetic import noisy_power, synthetic
from tests.lab.analysis.test_reference import line, write

PARTS = tuple((0, block, part) for block in ("query", "value") for part in ("outer", "functional", "full"))
TINY = {"d_model": 6, "sequences": 2, "repeats": 2, "probes": 3}


def title(axes: Axes) -> str:
    return axes.get_title(loc="left")


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def dashed(axes: Axes) -> list[np.ndarray]:
    return [np.array(line.get_xydata()) for line in axes.lines if line.is_dashed() and len(line.get_xdata()) > 2]


def test_single_layer_has_two_panels_with_exponents_and_guides() -> None:
    result = fig3a.EXPERIMENT.run(fig3a.EXPERIMENT.preset("quick", {**TINY, "points": 7}))
    fits = exponent_fits(result)
    query, value = draw(result, fits).axes
    assert (title(query), title(value)) == ("Query block", "Value block")
    assert query.get_xscale() == query.get_yscale() == "log"
    assert [text.split(":")[0] for text in legend(query)] == ["full", "outer product", "functional"]
    assert "functional: exactly 0" in legend(value)
    slopes = sorted(float(np.polyfit(*np.log(guide).T, 1)[0]) for guide in dashed(query))
    assert slopes == pytest.approx([5, 5, 6])
    assert "95 % interval" in caption(result, fits)


def test_legend_tells_measured_and_predicted() -> None:
    config = GrowthConfig(points=8, repeats=6)
    result = synthetic(config, noisy_power(4.0, 0.05, seed=0), series=PARTS)
    text = next(entry for entry in legend(draw(result, exponent_fits(result)).axes[0]) if entry.startswith("outer"))
    assert text.startswith("outer product: 4.0") or text.startswith("outer product: 3.9")
    assert text.endswith("(6)")


def test_linear_axes_have_a_row_for_each_grid_and_carry_the_law_on() -> None:
    config = fig5.EXPERIMENT.preset("quick", {"repeats": 2, "points": 16})
    result = synthetic(config, lambda s, r: s**5 / (1 + s**2), series=PARTS)
    axes = draw(result, exponent_fits(result)).axes
    assert [title(a) for a in axes][::2] == ["Query block, σ up to 1", "Query block, σ up to 10"]
    assert axes[0].get_xscale() == "linear"
    near, far = (dashed(axes[k])[0] for k in (0, 2))
    np.testing.assert_allclose(near[-1, 1] / near[-1, 0] ** 5, far[-1, 1] / far[-1, 0] ** 5, rtol=1e-6)


def test_stacks_have_a_row_for_each_depth_and_a_line_for_each_layer() -> None:
    config = fig7.EXPERIMENT.preset("quick", {"layers": (2, 3), "repeats": 3})
    series = tuple((layer, *rest) for layer in (0, 1) for _, *rest in PARTS)
    result = synthetic(config, lambda s, r: (1 + 0.1 * r) * (s**9 + 1e4 * s**18), series=series)
    axes = draw(result, exponent_fits(result)).axes
    assert len(axes) == 8
    assert [title(a) for a in axes[1::4]] == ["2 layers: query, full", "3 layers: query, full"]
    first, second = legend(axes[1])
    assert first.startswith("layer 1: ") and "(9), then" in first and first.endswith("(18)")
    assert second.startswith("layer 2: ") and second.count("(") == 1 and second.endswith("(18)")


def test_linear_mlps_have_a_panel_for_each_depth() -> None:
    result = fig8.EXPERIMENT.run(fig8.EXPERIMENT.preset("quick", {**TINY, "points": 4}))
    figure = draw(result, exponent_fits(result))
    shown = [axes for axes in figure.axes if axes.axison]
    assert [len(legend(axes)) for axes in shown] == [1, 2, 3, 4, 5]
    assert to_svg(figure, "fig8", "Linear MLPs").count("layer 5") == 1


def test_published_points_are_drawn_and_unsound_ones_told_apart(tmp_path: Path) -> None:
    config = GrowthConfig(points=4, repeats=3)
    result = synthetic(config, noisy_power(6.0, 0.01, seed=0), series=PARTS)
    sigmas = config.sigmas()[0]
    lines = [line(sigmas[0], 1e-3), *(line(s, 3 * s**6, s**6) for s in sigmas[1:])]
    query, value = draw(result, exponent_fits(result), read_reference(write(tmp_path, lines))).axes
    drawn = {line.get_label(): len(line.get_xdata()) for line in query.lines}
    assert (drawn["published"], drawn["published, not sound"]) == (3, 1)
    assert "published" not in legend(value)


def test_gaps_are_left_where_values_overflow() -> None:
    config = GrowthConfig(points=8, repeats=3)
    result = synthetic(config, lambda s, r: float("inf") if s > 9 else s**6, series=PARTS)
    query = draw(result, exponent_fits(result)).axes[0]
    assert np.isnan(query.lines[0].get_ydata()).sum() == 1
    assert np.isfinite(query.get_ylim()).all()
