"""Growth figures show every panel, line, exponent, guide and published point they should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.growth.measure import GrowthConfig
from hessianlab.growth.reference import Reference, read_reference
from hessianlab.plots.picture import ResultPicture
from hessianlab.plots.style import to_svg
from hessianlab.presentations import pictures_of
from hessianlab.results import Result
from tests.hessianlab.growth.synthetic import noisy_power, synthetic
from tests.hessianlab.growth.test_reference import line, write

PARTS = tuple((0, block, part) for block in ("query", "value") for part in ("outer", "functional", "full"))
TINY = {"d_model": 6, "sequences": 2, "repeats": 2, "probes": 3}


def run(name: str, **changes: object) -> Result:
    return EXPERIMENTS[name].run(EXPERIMENTS[name].preset("quick", {**TINY, **changes}))


def drawn(result: Result, reference: Reference | None = None) -> dict[str, ResultPicture]:
    return {picture.name: picture for picture in pictures_of(result, reference)}


def panels(result: Result, reference: Reference | None = None, name: str = "growth") -> list[Axes]:
    """The panels with curves, without the strips of ratios."""
    return [axes for axes in drawn(result, reference)[name].figure.axes if title(axes)]


def title(axes: Axes) -> str:
    return axes.get_title(loc="left")


def legend(axes: Axes) -> list[str]:
    found = axes.get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def dashed(axes: Axes) -> list[np.ndarray]:
    return [np.array(line.get_xydata()) for line in axes.lines if line.is_dashed() and len(line.get_xdata()) > 100]


@pytest.mark.long
def test_single_layer_has_two_panels_with_exponents_and_guides() -> None:
    result = run("fig3a", points=7)
    query, value = panels(result)
    assert (title(query), title(value)) == ("Query block", "Value block")
    assert query.get_xscale() == query.get_yscale() == "log"
    assert [text.split(":")[0] for text in legend(query)] == ["full", "outer product", "functional"]
    assert "functional: exactly zero" in legend(value)
    slopes = sorted(float(np.polyfit(*np.log(guide).T, 1)[0]) for guide in dashed(query))
    assert slopes == pytest.approx([5, 5, 6])
    assert "95% interval" in drawn(result)["growth"].reading


def test_legend_tells_measured_and_predicted() -> None:
    config = GrowthConfig(points=8, repeats=6)
    result = synthetic(config, noisy_power(4.0, 0.05, seed=0), series=PARTS)
    text = next(entry for entry in legend(panels(result)[0]) if entry.startswith("outer"))
    assert text.startswith("outer product: 4.0") or text.startswith("outer product: 3.9")
    assert text.endswith("(6)")


def test_linear_axes_have_a_row_for_each_grid_and_carry_the_law_on() -> None:
    config = EXPERIMENTS["fig5"].preset("quick", {"repeats": 2, "points": 16})
    result = synthetic(config, lambda s, r: s**5 / (1 + s**2), series=PARTS, experiment="fig5")
    axes = panels(result)
    assert [title(a) for a in axes][::2] == ["Query block, σ up to 1", "Query block, σ up to 10"]
    assert axes[0].get_xscale() == "linear"
    near, far = (dashed(axes[k])[0] for k in (0, 2))
    np.testing.assert_allclose(near[-1, 1] / near[-1, 0] ** 5, far[-1, 1] / far[-1, 0] ** 5, rtol=1e-6)


def test_stacks_have_a_row_for_each_depth_and_a_line_for_each_layer() -> None:
    config = EXPERIMENTS["fig7"].preset("quick", {"layers": (2, 3), "repeats": 3})
    series = tuple((layer, *rest) for layer in (0, 1) for _, *rest in PARTS)
    result = synthetic(config, lambda s, r: (1 + 0.1 * r) * (s**9 + 1e4 * s**18), series=series, experiment="fig7")
    assert list(drawn(result)) == ["query", "value"]
    axes = panels(result, name="query")
    parts = ("outer product", "functional", "full")
    assert [title(a) for a in axes] == [f"{depth} layers: query, {part}" for depth in (2, 3) for part in parts]
    first, second = legend(axes[2])
    assert first.startswith("layer 1: ") and "(9), then" in first and first.endswith("(18)")
    assert second.startswith("layer 2: ") and second.count("(") == 1 and second.endswith("(18)")


@pytest.mark.long
def test_linear_mlps_have_a_panel_for_each_depth() -> None:
    result = run("fig8", points=4)
    assert [len(legend(axes)) for axes in panels(result)] == [1, 2, 3, 4, 5]
    assert to_svg(drawn(result)["growth"].figure, "fig8", "Linear MLPs").count("layer 5") == 1


@pytest.mark.long
def test_a_setting_that_changes_the_model_is_drawn_too() -> None:
    deeper = run("fig3a", layers=(1, 2), points=3)
    assert [title(a) for a in panels(deeper)][2:4] == ["Query block, layer 1 of 2", "Value block, layer 1 of 2"]
    chain = run("fig6", model="linear_mlp", loss="square", layers=(2,), points=3)
    assert [title(a) for a in panels(chain, name="mlp")] == ["2 layers: mlp, full"]
    attention = run("fig8", model="transformer", layers=(1,), points=3)
    assert len(panels(attention)) == 6


def published(tmp_path: Path) -> tuple[Result, Reference]:
    """Measured and published norms of one block's outer product; the first published point is on a floor."""
    config = GrowthConfig(points=4, repeats=3)
    result = synthetic(config, noisy_power(6.0, 0.01, seed=0), series=PARTS)
    sigmas = config.sigmas()[0]
    lines = [line(sigmas[0], 1e-3), *(line(s, 6 * s**6, 0.1 * s**6) for s in sigmas[1:])]
    return result, read_reference(write(tmp_path, lines))


def test_published_points_have_the_colour_of_their_line_and_unsound_ones_are_told_apart(tmp_path: Path) -> None:
    query, value = panels(*published(tmp_path))
    outer = next(line for line in query.lines if str(line.get_label()).startswith("outer"))
    circles, crosses = (
        [own for own in query.lines if own.get_marker() == marker and own.get_markersize() == 7] for marker in "ox"
    )
    assert [len(own.get_xdata()) for own in (*circles, *crosses)] == [3, 1]
    assert {own.get_markeredgecolor() for own in (*circles, *crosses)} == {outer.get_color()}
    assert {"published", "published, not sound"} <= set(legend(query)) and "published" not in legend(value)


def test_ratios_stand_below_what_was_published_and_nowhere_else(tmp_path: Path) -> None:
    result, reference = published(tmp_path)
    picture = drawn(result, reference)["growth"]
    strips = [axes for axes in picture.figure.axes if axes.axison and not title(axes)]
    (strip,) = strips
    assert strip.get_ylabel() == "ours / published"
    (points,) = [container.lines[0] for container in strip.containers]
    np.testing.assert_allclose(points.get_ydata(), 0.5, rtol=0.05)
    (told,) = [text.get_text() for text in strip.texts]
    assert told.startswith("outer product 0.5") and "±" in told
    assert "Of 3 published points 0% lie within two" in picture.caption
    assert not [axes for axes in drawn(result)["growth"].figure.axes if not title(axes)]


def test_the_median_is_drawn_where_one_draw_carries_the_mean() -> None:
    config = GrowthConfig(points=8, repeats=5)
    result = synthetic(config, lambda s, r: s**6 * (350.0 if r == 0 and s > 5 else 1.0), series=PARTS)
    query = panels(result)[0]
    mean, median = (np.array(own.get_ydata()) for own in query.lines[:2])
    np.testing.assert_allclose(mean[-1] / median[-1], (350 + 4) / 5)
    np.testing.assert_allclose(mean[:-1], median[:-1])


def test_gaps_are_left_where_values_overflow() -> None:
    config = GrowthConfig(points=8, repeats=3)
    result = synthetic(config, lambda s, r: float("inf") if s > 9 else s**6, series=PARTS)
    query = panels(result)[0]
    assert np.isnan(query.lines[0].get_ydata()).sum() == 1
    assert np.isfinite(query.get_ylim()).all()
