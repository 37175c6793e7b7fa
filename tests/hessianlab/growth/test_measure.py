"""The growth experiments: seeds, cells and norms, each norm against automatic differentiation."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import hessianlens as hl
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.growth.exponents import exponent_fits
from hessianlab.growth.measure import GrowthConfig, growth_cells, linear_block_norms
from hessianlens.errors import InputError
from tests.oracles.network import dense_network_hessian, whole

FIGURES = ("fig3a", "fig3b", "fig5", "fig6", "fig7", "fig8")
TINY = {"d_model": 4, "sequences": 3, "points": 3, "repeats": 2, "probes": 4, "tangents": "float64"}
DEPTHS = {"fig6": (2,), "fig7": (1, 2), "fig8": (2,)}


def tiny(name: str, **changes: object) -> GrowthConfig:
    overrides = {**TINY, **({"layers": DEPTHS[name]} if name in DEPTHS else {}), **changes}
    return EXPERIMENTS[name].preset("quick", overrides)


@pytest.mark.parametrize("name", FIGURES)
def test_registered_and_whole(name: str) -> None:
    experiment = EXPERIMENTS[name]
    assert experiment.name == name
    assert set(experiment.presets) == {"quick", "paper"}
    paper = experiment.presets["paper"]
    assert (paper.d_model, paper.sequences, paper.points, paper.repeats, paper.probes) == (128, 64, 20, 20, 20)
    for preset in experiment.presets.values():
        keys = [json.dumps(cell, sort_keys=True) for cell in experiment.cells(preset)]
        assert len(keys) == len(set(keys)) == preset.repeats * len(preset.layers) * len(preset.sigmas()) * preset.points


@pytest.mark.long
@pytest.mark.parametrize("name", FIGURES)
def test_every_cell_gives_every_block_and_is_repeatable(name: str) -> None:
    experiment = EXPERIMENTS[name]
    for parameters in experiment.cells(tiny(name, repeats=1)):
        rows = experiment.measure(parameters).rows
        wanted = 1 if name == "fig8" else 6
        assert len(rows) == wanted * parameters["layers"]
        assert all(row["value"] >= 0 and row["stderr"] >= 0 for row in rows)
        last = [row for row in rows if row["layer"] == parameters["layers"] - 1]
        assert {row["method"] for row in last} == {"closed form"}
        assert rows == experiment.measure(json.loads(json.dumps(parameters))).rows


def test_seeds_are_as_stated() -> None:
    config = GrowthConfig(layers=(1, 2), sigma_high=(1.0, 10.0), points=3, repeats=2, seed=5)
    cells = growth_cells(config)
    assert {(cell["data_seed"], cell["carries"]) for cell in cells} == {(1234, "none")}, "the published batch"
    for cell in cells:
        number = cell["grid"] * 3 + config.sigmas()[cell["grid"]].index(cell["sigma"])
        assert cell["weight_seed"] == 5 + cell["repeat"]
        assert cell["embedding_seed"] == 1_000_000 + 10_000 * (5 + cell["repeat"]) + number
        assert cell["probe_seed"] == 2_000_000_000 + 10_000 * (5 + cell["repeat"]) + number


def dense_norms(name: str, parameters: dict[str, object], layer: int, weight: str) -> dict[str, float]:
    """The three norms of one block from dense automatic differentiation of the loss and of the logits."""
    task = hl.tasks.Addition()
    model = hl.models.Transformer(
        parameters["layers"],
        parameters["d_model"],
        attention=parameters["attention"],
        norm=parameters["norm"],
        residual_scale=parameters["residual_scale"],
        mlp=parameters["mlp"],
        seed=parameters["weight_seed"],
        dtype=torch.float64,
    ).redraw_embeddings(parameters["sigma"], seed=parameters["embedding_seed"])
    batch = task.batch(parameters["sequences"], seed=parameters["data_seed"], carries=parameters["carries"])
    loss = getattr(task, parameters["loss"])
    blocks = whole(f"blocks.{layer}.attention.{weight}")
    dense = dense_network_hessian(model, [batch["tokens"]], lambda logits, _: loss(logits[0], batch), blocks)
    return {part: float(getattr(dense, part).norm()) for part in ("outer", "functional", "full")}


@pytest.mark.expensive
@pytest.mark.parametrize("name", ["fig3a", "fig3b", "fig6", "fig7"])
def test_norms_are_those_of_automatic_differentiation(name: str) -> None:
    """With a probe for every entry the sampled layers are exact too."""
    config = tiny(name, sequences=2, probes=16, repeats=1)
    parameters = growth_cells(config)[-1]
    rows = {(r["layer"], r["block"], r["part"]): r for r in EXPERIMENTS[name].measure(parameters).rows}
    for layer in range(parameters["layers"]):
        for block, weight in (("query", "W_Q"), ("value", "W_V")):
            wanted = dense_norms(name, parameters, layer, weight)
            for part, value in wanted.items():
                assert rows[layer, block, part]["value"] == pytest.approx(value, rel=1e-8, abs=1e-9 * wanted["full"])


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_linear_blocks_are_those_of_automatic_differentiation(layers: int) -> None:
    task = hl.tasks.Addition()
    model = hl.models.LinearMLP(layers, width=5, seed=layers, dtype=torch.float64)
    batch = task.batch(3, seed=0)
    norms = linear_block_norms(model, batch["tokens"][:, list(task.loss_positions)])
    for layer, norm in enumerate(norms):
        dense = dense_network_hessian(
            model,
            [batch["tokens"]],
            lambda logits, _: task.square(logits[0], batch),
            whole(f"layers.{layer}.weight"),
        )
        assert norm == pytest.approx(float(dense.full.norm()), rel=1e-12)
        # The outer product alone: there is no functional part.
        J = dense.jacobian.unflatten(0, (3, -1, task.vocab))[:, list(task.loss_positions)].flatten(0, 2)
        assert float((dense.full - 2 * J.T @ J).norm()) < 1e-12 * norm


@pytest.mark.long
def test_tangents_in_single_precision_change_norms_far_less_than_probes_do() -> None:
    """At every scale, also where the loss saturates: activations and gradients stay in double precision."""
    assert EXPERIMENTS["fig6"].presets["paper"].tangents == "float32"
    for parameters in growth_cells(tiny("fig6", d_model=16, points=4, probes=10, repeats=1)):
        double = EXPERIMENTS["fig6"].measure(parameters).rows
        single = EXPERIMENTS["fig6"].measure({**parameters, "tangents": "float32"}).rows
        for ours, theirs in zip(double, single, strict=True):
            assert theirs["value"] == pytest.approx(ours["value"], rel=1e-5)
            assert ours["stderr"] == 0 or abs(theirs["value"] - ours["value"]) < 1e-3 * ours["stderr"]


@pytest.mark.long
def test_growth_follows_the_counted_exponents() -> None:
    """Small, but wide enough in sigma for exponents to come out."""
    single = EXPERIMENTS["fig3a"].run(tiny("fig3a", d_model=16, sequences=4, points=8, repeats=5))
    fits = {(f.series.block, f.series.part): f for f in exponent_fits(single) if f.range.name == "small"}
    assert {key: fit.predicted for key, fit in fits.items() if fit.agrees is not True} == {}
    chain = EXPERIMENTS["fig7"].run(tiny("fig7", d_model=16, sequences=2, points=6, repeats=4, layers=(2,)))
    decided = [f for f in exponent_fits(chain) if f.predicted is not None]
    assert [f for f in decided if f.agrees is False] == []
    assert sum(f.agrees is True for f in decided) >= 10


def test_bad_settings_are_refused() -> None:
    for wrong, message in (
        ({"loss": "hinge"}, "loss"),
        ({"model": "linear_mlp"}, "expected 'square'"),
        ({"sigma_low": 20.0}, "sigma_low"),
        ({"layers": ()}, "layers"),
        ({"repeats": 0}, "repeats"),
        ({"sigma_high": ()}, "sigma_high"),
        ({"fit_ranges": (("small", 1.0, 0.1),)}, "fit_ranges"),
        ({"spacing": "cubic"}, "spacing"),
    ):
        with pytest.raises(InputError, match=message):
            dataclasses.replace(GrowthConfig(), **wrong)
    with pytest.raises(InputError, match="at most 10000"):
        growth_cells(GrowthConfig(points=10_001))


@pytest.mark.parametrize(
    ("name", "value"), [("layers", (1, 0)), ("d_model", -4), ("sequences", 0), ("probes", 1), ("points", 1)]
)
def test_sizes_are_refused_before_the_first_cell(name: str, value: object) -> None:
    with pytest.raises(InputError, match=rf"{name}: got -?\d, expected at least"):
        GrowthConfig(**{name: value})
