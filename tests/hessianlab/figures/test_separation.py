"""What separates the blocks: activations by a(0), temperature, powers of the weights, depth."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from hessianlab.experiments.models import lone_layer
from hessianlab.figures import entropy, growth
from hessianlab.figures.activations import measure_offset, measure_scales
from hessianlab.figures.powers import WEIGHT_POWERS
from hessianlab.figures.presentation import activation_scales as scales
from hessianlab.figures.presentation import activations as offset
from hessianlab.figures.presentation import entropy as temperature
from hessianlab.figures.presentation import growth as depth
from hessianlab.figures.presentation import powers
from hessianlab.plots.style import OFFSET, ZERO
from hessianlab.presentations import pictures_of
from hessianlab.results import FinishedCell, Measurement, Result
from tests.hessianlab.figures.small import small_result
from tests.oracles.autograd import dense_parts


def changed(result: Result, change) -> Result:
    """The same result with every row replaced by what `change` makes of it, given its cell's parameters."""
    cells = [
        FinishedCell(
            cell.parameters,
            Measurement(tuple(change(cell.parameters, row) for row in cell.measurement.rows), cell.measurement.arrays),
            cell.seconds,
        )
        for cell in result.cells
    ]
    return dataclasses.replace(result, cells=tuple(cells))


def offsets(ratio: dict[str, float]) -> Result:
    """A result in which the value block is so many times the query block."""

    def change(asked, row):
        return {**row, "rms": ratio[asked["activation"]] if row["block"] == "value" else 1.0}

    return changed(small_result("activation_offset"), change)


def test_a_zero_is_measured() -> None:
    assert offset.kinds(small_result("activation_offset")) == {
        "softmax": OFFSET,
        "sigmoid": OFFSET,
        "linear": ZERO,
    }


def test_the_verdict_on_a_zero_follows_the_numbers() -> None:
    held = offsets({"softmax": 90.0, "sigmoid": 1440.0, "linear": 1.2})
    assert offset.a_zero_decides(held, "layer")
    first, second, _ = offset.offset_sentences(held)
    assert "not softmax but a(0) ≠ 0" in first and "16 times as much as softmax" in second
    for wrong in ({"softmax": 90.0, "sigmoid": 2.0, "linear": 1.2}, {"softmax": 90.0, "sigmoid": 99.0, "linear": 50.0}):
        found = offsets(wrong)
        assert offset.a_zero_decides(found, "layer") is False
        assert (
            "does not decide" in offset.offset_sentences(found)[0]
            and "not softmax but" not in offset.offset_sentences(found)[0]
        )


def test_ratios_are_grouped_in_the_picture() -> None:
    (ratio, _) = pictures_of(small_result("activation_offset"))
    labels = [label.get_text() for label in ratio.figure.axes[0].get_yticklabels()]
    assert labels[-1] == "linear" and set(labels) == {"softmax", "sigmoid", "linear"}
    written = {text.get_text(): text.xy[1] for text in ratio.figure.axes[0].texts}
    heights = dict(zip(labels, ratio.figure.axes[0].get_yticks(), strict=True))
    assert written[OFFSET] < heights["softmax"] < written[ZERO] < heights["linear"]


def test_the_initialisation_is_one_of_the_scales_and_the_same_network() -> None:
    asked = {"seed": 3, "d_model": 4, "sequences": 2, "data_seed": 1234, "carries": "none", "activation": "sigmoid"}
    found = measure_scales({**asked, "low": -1.0, "high": 0.8, "points": 4})
    other = measure_offset({**asked, "place": "transformer"})
    at = {row["block"]: row["norm"] for row in found.rows if row["factor"] == 1.0}
    norms = {row["block"]: row["norm"] for row in other.rows if row["part"] == "full"}
    assert at.keys() == norms.keys() and all(at[block] == pytest.approx(norms[block], rel=1e-12) for block in at)
    assert [row["sigma"] for row in found.rows if row["factor"] == 1.0] == pytest.approx([0.4] * 3)
    assert {row["at_zero"] for row in found.rows} == {0.5}


def test_ratios_over_the_scale_follow_the_numbers() -> None:
    def power(exponent: float) -> Result:
        def change(asked, row):
            grown = row["factor"] ** exponent if asked["activation"] == "softmax" else 1.0
            return {**row, "norm": 30.0 * grown if row["block"] == "value" else 1.0}

        return changed(small_result("activation_scales"), change)

    falling = scales.scale_sentences(power(-3.0))
    assert "30 with softmax" in falling[0] and "−3.0 with softmax" in falling[1] and "turns round" in falling[2]
    rising = scales.scale_sentences(power(1.0))
    assert " 1.0 with softmax" in rising[1] and "0.0 with linear" in rising[1] and "turns round" not in rising[2:]
    curve = scales.ratio_curves(power(-3.0))["softmax"]
    assert curve.at_initialisation == pytest.approx(30) and curve.power == pytest.approx(-3)
    assert curve.crossing == pytest.approx(curve.sigma[curve.start] * 30 ** (1 / 3)), "between the measured scales"
    assert scales.ratio_curves(power(1.0))["softmax"].crossing is None


def output(setting, temperature: float, weights: dict[str, Tensor]) -> Tensor:
    Q, K, V = (setting.X @ weights[name] for name in "QKV")
    return torch.softmax(Q @ K.T / (temperature * math.sqrt(Q.shape[1])), -1) @ V


@pytest.mark.parametrize("hot", [3.0, 0.2])
def test_the_path_of_temperatures_is_that_of_autograd(hot: float) -> None:
    found = entropy.TEMPERATURE_PATH.measure({"temperature": hot, "seed": 1, "d_model": 3, "d_k": 2, "length": 4})
    setting = lone_layer(3, 2, 4, 1)
    dense = dense_parts(lambda w: output(setting, hot, w), lambda F: mse_loss(F, setting.Y), setting.layer.parameters)
    values = {row["quantity"]: row["value"] for row in found.rows}
    assert values["full QQ"] == pytest.approx(float(dense.block("full", "Q", "Q").norm()), rel=1e-9)
    assert values["outer QQ"] == pytest.approx(float(dense.block("outer", "Q", "Q").norm()), rel=1e-9)
    assert values["outer VV"] == pytest.approx(float(dense.block("full", "V", "V").norm()), rel=1e-9)
    scores = (setting.X @ setting.layer.W_Q) @ (setting.X @ setting.layer.W_K).T / (hot * math.sqrt(2))
    slopes = torch.stack([torch.func.jacrev(lambda row: torch.softmax(row, -1))(row) for row in scores])
    np.testing.assert_allclose(found.arrays["derivative"], slopes[0].numpy(), atol=1e-12)
    assert values["derivative"] == pytest.approx(float(slopes.norm(dim=(1, 2)).mean()), rel=1e-10)


@pytest.mark.long
def test_frames_share_their_axes_and_say_where_they_are() -> None:
    whole, *frames = pictures_of(small_result("temperature_path"))
    assert whole.frame == "" and len(frames) == 5 and len({frame.caption for frame in frames}) == 1
    hot = temperature.temperatures(small_result("temperature_path"))
    assert [float(frame.frame.split()[1].rstrip(",")) for frame in frames] == pytest.approx(hot, rel=0.01)
    for frame in frames:
        panels = [axes for axes in frame.figure.axes if axes.get_title("left")]
        first = [axes for axes in frames[0].figure.axes if axes.get_title("left")]
        for axes, other in zip(panels, first, strict=True):
            assert axes.get_xlim() == other.get_xlim() and axes.get_ylim() == other.get_ylim()
            assert [image.get_clim() for image in axes.images] == [image.get_clim() for image in other.images]
    lines = [frame.figure.axes[2].lines[-1].get_xdata()[0] for frame in frames]
    assert lines == pytest.approx(hot)


def test_which_block_is_larger_follows_the_numbers() -> None:
    hot = temperature.temperatures(small_result("temperature_path"))

    def told(query: float) -> str:
        def change(asked, row):
            middle = asked["temperature"] == hot[2]
            sizes = {"full QQ": query if middle else 0.1, "outer VV": 1.0}
            return {**row, "value": sizes.get(row["quantity"], row["value"])}

        return temperature.path_sentences(changed(small_result("temperature_path"), change))[2]

    assert "value block is the larger one at both ends, the query block in between" in told(5.0)
    assert "larger one at the hot end, the value block at the cold one" in told(0.5)


def test_powers_hold_for_small_weights_and_not_for_others() -> None:
    result = small_result("weight_powers")
    assert all(powers.agrees(power, "small") for power in powers.measured_powers(result, "small"))
    drawn = {(p.part, p.block, p.weight): p for p in powers.measured_powers(result, "drawn")}
    assert drawn["outer", "QQ", "V"].off < 1e-9
    assert not powers.agrees(drawn["functional", "QQ", "V"], "drawn")
    assert drawn["functional", "VV", "Q"].mean is None and drawn["functional", "VV", "Q"].off == 0


def test_a_slope_is_the_derivative_of_the_norm() -> None:
    cell = {"seed": 3, "d_model": 3, "d_k": 2, "length": 4}
    rows = WEIGHT_POWERS.measure(cell).rows
    setting = lone_layer(3, 2, 4, 3)

    def norm(factor: float) -> float:
        weights = {**setting.layer.parameters, "K": factor * setting.layer.W_K}
        dense = dense_parts(lambda w: output(setting, 1.0, w), lambda F: mse_loss(F, setting.Y), weights)
        return float(dense.block("functional", "Q", "Q").norm())

    slope = (math.log(norm(1.001)) - math.log(norm(0.999))) / (math.log(1.001) - math.log(0.999))
    (row,) = [r for r in rows if (r["where"], r["part"], r["block"], r["weight"]) == ("drawn", "functional", "QQ", "K")]
    assert row["power"] == pytest.approx(slope, abs=1e-3)


def test_a_wrong_power_is_told_and_framed() -> None:
    def change(_, row):
        wrong = (row["where"], row["part"], row["block"], row["weight"]) == ("small", "outer", "QK", "V")
        return {**row, "power": 1.0} if wrong else row

    result = changed(small_result("weight_powers"), change)
    assert powers.weight_powers_sentences(result)[0].startswith("As one weight matrix goes to zero, 35 of 36")
    right, wrong = (pictures_of(r)[0].figure.axes[1] for r in (small_result("weight_powers"), result))
    frames = [sum(not patch.get_fill() for patch in axes.patches) for axes in (right, wrong)]
    assert frames == [0, 1]


def small_depth(layers: tuple[int, ...] = (1, 2)) -> Result:
    config = growth.DepthConfig(layers, d_model=6, sequences=2, points=3, repeats=3, sigma_low=0.2)
    return growth.DEPTH_GROWTH.run(config)


@pytest.mark.long
def test_powers_by_depth_are_those_of_theory_and_a_wrong_one_is_told() -> None:
    result = small_depth()
    found = {(e.family, e.depth): e for e in depth.depth_exponents(result)}
    assert [e.predicted for e in found.values()] == [2, 2, 6, 18]
    for exponent in found.values():
        assert exponent.slope.measured == pytest.approx(exponent.predicted, rel=0.25)

    def steeper(asked, row):
        return {**row, "value": row["value"] * asked["sigma"] ** 9} if asked["model"] == "linear_mlp" else row

    wrong = [e for e in depth.depth_exponents(changed(result, steeper)) if e.family == "linear MLP"]
    assert all(e.agrees is False and e.slope.measured == pytest.approx(11, abs=1) for e in wrong)
    decided = sum(e.agrees is not None for e in found.values())
    sentence = depth.depth_sentences(result)[0]
    assert ("too few to decide" in sentence) is (decided == 0) and "0 of 0" not in sentence
    told = re.search(r"(\d) of (\d) agree", depth.depth_sentences(changed(result, steeper))[0])
    assert told and int(told[2]) - int(told[1]) == 2
    (picture,) = pictures_of(result)
    assert picture.figure.axes[1].get_xlabel() == "layers"
