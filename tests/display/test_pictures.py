"""Pictures say what the numbers say."""

from __future__ import annotations

import base64
import re
import zlib

import pytest

from hessianlens.display import Curve, Dot, Dots, Entries, Grid, Point, Scatter, Spikes
from hessianlens.display.chart import Axis


def test_places_grow_with_the_numbers() -> None:
    values = (0.01, 1.0, 30.0)
    svg = Dots(("a", "b", "c"), {"norm": [Dot.of(v) for v in values]}, "norm").svg()
    places = [float(x) for x in re.findall(r'<circle cx="([\d.]+)"', re.sub("<title>.*?</title>", "", svg))]
    axis = Axis.around(values, log=True)
    assert places == sorted(places) and len(places) == 3
    assert (places[1] - places[0]) / (places[2] - places[0]) == pytest.approx(4.605 / 8.006, abs=0.01)
    assert axis.share(0.001) == 0


def test_what_is_nothing_beside_the_rest_does_not_stretch_the_axis() -> None:
    svg = Dots(("a", "b", "c"), {"norm": [Dot.of(1.0), Dot.of(0.1), Dot.of(1e-19)]}, "norm").svg()
    assert svg.count('fill="none"') == 1 and "10⁻" not in svg
    assert len(Scatter((Point("a", 1.0, 1.0), Point("b", 1e-18, 1.0), Point("c", 1.0, 0.0)), "x", "y").seen) == 1


def test_darker_is_larger_and_zero_is_blank() -> None:
    cells = Grid(("a", "b"), ("a", "b"), [[1.0, 0.1], [0.0, None]], "norm").heat_map()
    assert cells.level(1.0) == 1.0 and 0 <= cells.level(0.1) < 1 and cells.level(0.0) is cells.level(None) is None


def test_entries_keep_their_signs() -> None:
    svg = Entries([[1.0, -1.0, 0.0]], "entries").svg()
    png = base64.b64decode(re.search(r"base64,([^\"]+)", svg).group(1))
    data = zlib.decompress(png[png.index(b"IDAT") + 4 : -16])
    assert png.startswith(b"\x89PNG") and data == bytes([0, 0, 114, 178, 255, 213, 94, 0, 255, 213, 94, 0, 0])


def test_pairs_stand_above_each_other() -> None:
    picture = Spikes([3.0, 1.0, -1.0, -3.0], "eigenvalue", paired=True)
    assert picture.ranks() == [0, 1, 1, 0]


def test_a_curve_that_is_one_point_is_drawn() -> None:
    assert "<path" in Curve([1.0, 1.0], [2.0, 2.0], "x", "y").svg()


@pytest.mark.parametrize("values", [(0.0, 0.0), (1e-300, 1.0), (-1.0, float("inf")), (float("nan"), 1.0)])
@pytest.mark.parametrize("log", [False, True])
def test_every_axis_has_an_end(values: tuple[float, float], log: bool) -> None:
    axis = Axis.around(values, log=log)
    assert axis.low < axis.high and all(0 <= axis.share(v) <= 1 for v in values)
    assert all(0 <= axis.share(v) <= 1 for v, _ in axis.ticks)
