"""Every experiment of this part keeps the rules of experiments."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.runner import configure
from hessianlens.errors import InputError
from tests.hessianlab.figures.small import SMALL, small_result


@pytest.mark.parametrize("name", SMALL)
def test_presets_plan_different_cells_that_hold_everything(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.name == name and experiment.question.endswith("?")
    assert set(experiment.presets) == {"quick", "paper"}
    for config in experiment.presets.values():
        plan = experiment.cells(config)
        written = [json.dumps(cell, sort_keys=True) for cell in plan]
        assert len(set(written)) == len(written) > 1
        assert [json.loads(text) for text in written] == [dict(cell) for cell in plan]
        assert len({cell["seed"] for cell in plan}) > 1
        assert all(isinstance(v, (str, int, float, bool)) for cell in plan for v in cell.values())
        assert dataclasses.is_dataclass(config)


@pytest.mark.expensive
@pytest.mark.parametrize("name", SMALL)
def test_a_cell_is_the_same_every_time_and_leaves_the_global_generator_alone(name: str) -> None:
    experiment, cell = EXPERIMENTS[name], small_result(name).cells[-1]
    torch.manual_seed(7)
    before = torch.get_rng_state()
    again = experiment.measure(cell.parameters)
    assert torch.equal(torch.get_rng_state(), before)
    assert json.dumps(again.rows) == json.dumps(cell.measurement.rows)
    assert set(again.arrays) == set(cell.measurement.arrays)
    for key, array in again.arrays.items():
        np.testing.assert_array_equal(array, cell.measurement.arrays[key])


@pytest.mark.parametrize("name", SMALL)
def test_another_seed_gives_other_numbers(name: str) -> None:
    cell = small_result(name).cells[-1]
    other = EXPERIMENTS[name].measure({**cell.parameters, "seed": 99})
    if name == "rank_fraction":  # ranks are the same for generic weights, the sizes behind them are not
        assert other.rows[0]["smallest_kept"] != cell.measurement.rows[0]["smallest_kept"]
    else:
        assert json.dumps(other.rows) != json.dumps(cell.measurement.rows)


IMPOSSIBLE = [
    ("fig1", "d_model=0"),
    ("fig2", "length=2"),
    ("fig4", "attentions=softmax,hardmax"),
    ("table1", "d_hidden=-1"),
    ("table1", "models=linear"),
    ("activation_offset", "places=nowhere"),
    ("activation_growth", "points=2"),
    ("activation_growth", "low=3"),
    ("moment_strata", "length=1"),
    ("query_key_spectra", "repeats=0"),
    ("temperature_path", "points=1"),
    ("weight_powers", "length=2"),
    ("depth_growth", "layers=0"),
    ("depth_growth", "sigma_low=2"),
    ("rank_fraction", "d_ks=0,2"),
    ("parameterisations", "d_model=-4"),
]


@pytest.mark.parametrize(("name", "setting"), IMPOSSIBLE)
def test_impossible_settings_are_refused_before_the_first_cell(name: str, setting: str) -> None:
    with pytest.raises(InputError, match="got"):
        configure([EXPERIMENTS[name]], "quick", [setting])
