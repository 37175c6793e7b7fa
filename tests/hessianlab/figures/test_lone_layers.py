"""The experiments on one layer, against direct computation."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from hessianlab.experiments.models import lone_layer
from hessianlab.experiments.statistics import multiplicity, spectrum_facts
from hessianlab.figures import activations, entropy, powers, query_key
from hessianlab.figures.linear_models import BLOCKS_OF
from hessianlab.figures.presentation import powers as table1_findings
from hessianlab.figures.presentation.activations import agreements
from hessianlens.attention import second_moment
from tests.oracles.autograd import Weights, dense_parts


def autograd(setting, names: tuple[str, ...]) -> Tensor:
    """Hessian of the mean square loss with respect to some weights, by double differentiation."""
    weights = {name: setting.layer.parameters[name] for name in names}
    return dense_parts(
        lambda cut: setting.layer.with_parameters(cut)(setting.X), lambda F: mse_loss(F, setting.Y), weights
    ).full


def small_table1():
    config = powers.Table1Config(length=7, d_model=3, d_hidden=2, factors=3, repeats=2)
    return powers.TABLE1.run(config)


def test_table1_has_the_printed_powers_and_factorisations() -> None:
    result = small_table1()
    off = table1_findings.deviations(result)
    assert len(off) == 2 * 2 * (3 + 1 + 6 + 3)
    assert np.abs(off).max() < table1_findings.TABLE1_TOLERANCE
    gaps = [row["value"] for row in result.rows() if row["quantity"] == "factorisation gap"]
    assert len(gaps) == 8 and max(gaps) < 1e-12
    turned = {}
    for row in result.rows():
        if row["quantity"] == "change under rotation":
            turned.setdefault(row["model"], []).append(row["value"])
    assert max(turned["linear MLP"] + turned["linear attention"]) < 1e-12
    assert min(turned["softmax attention"]) > 1e-2


@pytest.mark.long
def test_table1_tells_a_wrong_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(powers.PRINTED, ("linear attention", "outer"), (2, 0))
    result = small_table1()
    sentence = table1_findings.table1_sentences(result)[0]
    assert sentence.startswith("40 of 52 measured powers"), sentence


def test_table1_mlp_blocks_are_those_of_autograd() -> None:
    source = torch.Generator().manual_seed(0)
    X, R = torch.randn(2, 5, 3, generator=source, dtype=torch.float64)
    weights = [torch.randn(3, w, generator=source, dtype=torch.float64) for w in (2, 2, 3)]
    first, second = weights[0], weights[1].T
    Y = X @ first @ second - R

    def output(W: Weights) -> Tensor:
        return X @ W["1"] @ W["2"]

    dense = dense_parts(output, lambda F: mse_loss(F, Y), {"1": first, "2": second})
    found = BLOCKS_OF["linear MLP"](X, R, weights)
    for name in ("11", "12"):
        torch.testing.assert_close(found["outer", name] + found["functional", name], dense.block("full", *name))


@pytest.mark.long
def test_growth_exponents_are_fitted_and_a_wrong_prediction_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    config = activations.ActivationGrowthConfig(("softmax", "linear"), 4, 3, 5, points=10, repeats=2)
    result = activations.ACTIVATION_GROWTH.run(config)
    assert all(agreements(result).values())
    exponents = {(r["activation"], r["part"], r["block"]): r["exponent"] for r in result.rows()}
    assert exponents["softmax", "functional", "QQ"] == pytest.approx(5, abs=0.02)
    assert exponents["linear", "functional", "QQ"] is None
    arrays = result.cells[0].measurement.arrays
    assert arrays["norms"].shape == (8, 10) and 2 < arrays["fitted"].sum() < 10
    setting = lone_layer(4, 3, 5, 0)
    scaled = dataclasses.replace(setting, X=arrays["sigmas"][4] * setting.X)
    # The value block does not see the gradient, which is held here and not there.
    direct = autograd(scaled, ("V",)).norm()
    assert arrays["norms"][3, 4] == pytest.approx(float(direct), rel=1e-9)
    monkeypatch.setattr("hessianlens.layer.predicted_growth", lambda *_: 4)
    wrong = agreements(activations.ACTIVATION_GROWTH.run(config))
    assert [key for key, good in wrong.items() if good] == [("softmax", "outer", "VQ")]


def test_moments_rebuild_their_blocks_and_no_others() -> None:
    cell = {"factor": 2.0, "seed": 1, "d_model": 3, "d_k": 2, "length": 5}
    rows = {row["quantity"]: row for row in entropy.MOMENT_STRATA.measure(cell).rows}
    drawn = lone_layer(3, 2, 5, 1)
    layer = drawn.layer.with_parameters({"Q": 2.0 * drawn.layer.W_Q})
    setting = dataclasses.replace(drawn, layer=layer)
    value_block = float(autograd(setting, ("V",)).norm())
    assert rows["outer VV"]["value"] == pytest.approx(value_block, rel=1e-9)
    A = torch.softmax((setting.X @ layer.W_Q) @ (setting.X @ layer.W_K).T / math.sqrt(2), -1)
    assert rows["M1"]["value"] == pytest.approx(float((A @ setting.X).norm()), rel=1e-12)
    assert rows["entropy"]["value"] == pytest.approx(float(-(A * A.log()).sum(-1).mean()), rel=1e-12)
    assert max(row["gap"] for row in rows.values() if "gap" in row) < 1e-13
    M2 = second_moment(A, setting.X)
    block = setting.hessian().outer["Q", "Q"].to_dense()
    assert (entropy.rebuild(setting, "M2", M2) - block).norm() < 1e-13
    assert (entropy.rebuild(setting, "M2", 1.01 * M2) - block).norm() > 1e-3 * block.norm()


def test_sharp_attention_leaves_the_query_block_nothing() -> None:
    config = entropy.StrataConfig(3, 3, 5, low=-2, high=4, points=2, repeats=1)
    flat, sharp = ({r["quantity"]: r for r in c.measurement.rows} for c in entropy.MOMENT_STRATA.run(config).cells)
    assert flat["entropy"]["share_of_uniform"] > 0.99 and sharp["entropy"]["share_of_uniform"] < 0.01
    assert sharp["outer QQ"]["value"] < 1e-3 * flat["outer QQ"]["value"]
    assert sharp["outer VV"]["value"] > flat["outer VV"]["value"]


@pytest.mark.parametrize("activation", ["softmax", "linear"])
def test_query_key_spectra_are_those_of_autograd(activation: str) -> None:
    cell = {"activation": activation, "seed": 2, "d_model": 4, "d_k": 3, "length": 7}
    found = query_key.QUERY_KEY_SPECTRA.measure(cell)
    setting = lone_layer(4, 3, 7, 2, activation=activation)
    whole = torch.linalg.eigvalsh(autograd(setting, ("Q", "K")))
    np.testing.assert_allclose(found.arrays["two full"], whole.numpy(), atol=1e-10 * float(whole.abs().max()))
    layer = setting.layer

    def merged(W: Weights) -> Tensor:
        T = setting.X @ W["QK"] @ setting.X.T
        return (torch.softmax(T, -1) if activation == "softmax" else T) @ setting.X @ layer.W_V

    W_QK = layer.W_Q @ layer.W_K.T / math.sqrt(3)
    one = dense_parts(merged, lambda F: mse_loss(F, setting.Y), {"QK": W_QK})
    for part, dense in (("full", one.full), ("outer", one.outer), ("functional", one.full - one.outer)):
        expected = torch.linalg.eigvalsh(dense).numpy()
        np.testing.assert_allclose(found.arrays[f"one {part}"], expected, atol=1e-10 * float(one.full.abs().max()))
    (pairs,) = [row for row in found.rows if row["part"] == "pairs"]
    assert pairs["multiplicity"] == pairs["predicted_multiplicity"] == 3
    assert pairs["pairing_gap"] < 1e-12 and pairs["closed_form_gap"] < 1e-12
    (own,) = [row for row in found.rows if row["part"] == "t_functional"]
    assert own["rank"] == pairs["predicted_nonzero"] == 24 and own["negative"] == 12
    assert own["balance"] == pytest.approx(0, abs=1e-12)


def test_multiplicity_is_the_shortest_run() -> None:
    values = torch.tensor([-2.0, 0.0, 1.0, 2.0, 2.0, 2.0], dtype=torch.float64)
    assert multiplicity(values) == 1


def test_ranks_meet_formula_and_bound() -> None:
    result = query_key.RANK_FRACTION.run(query_key.RankConfig(4, (1, 3, 5), (9, 3), repeats=1))
    for row in result.rows():
        assert row["rank"] == row["formula"] <= row["bound"]
        assert (row["rank"] == row["bound"]) == (row["length"] == 9)
        assert row["largest_dropped"] is None or row["largest_dropped"] < 1e-3 * row["smallest_kept"]


def test_one_matrix_and_two_compute_the_same_but_curve_differently() -> None:
    cell = {"d_model": 4, "d_k": 2, "length": 9, "seed": 3}
    found = query_key.PARAMETERISATIONS.measure(cell)
    rows = {(row["parameters"], row["part"]): row for row in found.rows}
    assert rows["dual", "full"]["output_gap"] < 1e-13
    setting = lone_layer(4, 2, 9, 3)
    dual = torch.linalg.eigvalsh(autograd(setting, ("Q", "K")))
    np.testing.assert_allclose(found.arrays["dual"], dual.numpy(), atol=1e-10)
    assert rows["dual", "full"]["negative"] == int((dual < -1e-12).sum())
    W = (setting.layer.W_Q @ setting.layer.W_K.T / math.sqrt(2)).requires_grad_()
    out = torch.softmax(setting.X @ W @ setting.X.T, -1) @ setting.X @ setting.layer.W_V
    (slope,) = torch.autograd.grad((out - setting.Y).square().mean(), W)
    assert rows["single", "full"]["gradient"] == pytest.approx(float(slope.norm()), rel=1e-10)
    assert rows["single", "outer"]["negative"] == 0 == rows["dual", "outer"]["negative"]
    assert rows["single", "full"]["size"] == 16 == rows["dual", "full"]["size"]


def test_spectrum_facts_of_a_known_matrix() -> None:
    facts = spectrum_facts(torch.tensor([-2.0, 0.0, 1e-18, 4.0], dtype=torch.float64))
    assert (facts["rank"], facts["negative"], facts["condition"]) == (2, 1, 2.0)
    assert facts["negative_share"] == pytest.approx(1 / 3)
    nothing = spectrum_facts(torch.zeros(3, dtype=torch.float64))
    assert nothing["rank"] == 0 and nothing["condition"] is None and nothing["negative_share"] == 0
