"""The claims about networks, depth, heads and norms notice when things are different."""

import math

import pytest
import torch
from transformers import GPT2Config

from hessianlab.claims import definition, networks, samples
from hessianlab.claims.finding import Verdict
from hessianlab.claims.networks import TASK, Network
from hessianlab.claims.topics import depth, formulas, growth, initialisation, network_parts, several_heads
from hessianlens.models import Transformer
from hessianlens.network import ggn
from tests.hessianlab.claims.verdicts import verdict
from tests.oracles.network import dense_network_hessian, whole


def scaled(function, factor=1.01):
    return lambda *arguments: factor * function(*arguments)


CORRUPTED = {
    "P61": (network_parts, "theorem_3_2"),
    "P65": (network_parts, "printed_block"),
    "P52": (several_heads, "remark_e_1"),
    "A33": (formulas, "theorem_3_1"),
}


@pytest.mark.parametrize("id", CORRUPTED)
def test_a_wrong_formula_fails(id, monkeypatch):
    definition.forget()
    module, name = CORRUPTED[id]
    monkeypatch.setattr(module, name, scaled(getattr(module, name)))
    assert verdict(id) is Verdict.FAILS
    definition.forget()


A30_AS_CLAIMED = (("softmax", None), ("softmax", "scale"), ("softmax", "post"))
"""What would show unequal growth if only a layer norm could undo it, and only softmax caused it."""

STAND_INS = {
    "P30": (growth, "growth", lambda *_: 4.0, Verdict.FAILS),
    "P31": (growth, "growth", lambda *_: 6.0, Verdict.FAILS),
    "P32": (growth, "functional", ggn, Verdict.FAILS),
    "P33": (initialisation, "entry_ratio", lambda *_: 2.0, Verdict.FAILS),
    "P34": (initialisation, "entry_ratio", lambda *_: 100.0, Verdict.FAILS),
    "A5": (initialisation, "norm_ratio", lambda *_: 1000.0, Verdict.FAILS),
    "A9": (initialisation, "_part", lambda b, p, sigma: sigma ** (6 if b == "q" else 2), Verdict.HOLDS),
    "A30": (
        initialisation,
        "exponents",
        lambda a, n, _: (5.0, 2.0) if (a, n) in A30_AS_CLAIMED else (0.0, 0.0),
        Verdict.HOLDS,
    ),
    "A31": (initialisation, "norm_ratio", lambda *_: 50.0, Verdict.FAILS),
    "P51": (initialisation, "difference", lambda *_: 3.0, Verdict.FAILS),
    "P54": (several_heads, "zero_share", lambda _: 0.9, Verdict.FAILS),
    "P55": (
        several_heads,
        "_dominance",
        lambda: {s: {h: [5.0 * h] for h in (1, 2, 4)} for s in (0.1, 1.0)},
        Verdict.HOLDS,
    ),
    "P59": (depth, "mean_norms", lambda *_: [1.0, 1.0, 1.0, 1.0], Verdict.FAILS),
}


ONLY_DRAWN = ((growth, "_curves"), (initialisation, "ratio_curve"), (initialisation, "_curves"))
FEWER = {(initialisation, "MANY"): 3, (depth, "REPEATS"): 1}


@pytest.fixture
def quick(monkeypatch):
    """Nothing that is only drawn, and fewer seeds: one figure is made up, and the others need only be what they are."""
    for place in ONLY_DRAWN:
        monkeypatch.setattr(*place, lambda *_: None)
    for place, seeds in FEWER.items():
        monkeypatch.setattr(*place, seeds)


@pytest.mark.long
@pytest.mark.parametrize("id", ["P33", "P59"])
def test_fewer_seeds_alone_change_no_verdict(id, quick):
    assert verdict(id) is Verdict.HOLDS


@pytest.mark.long
@pytest.mark.parametrize("id", STAND_INS)
def test_another_measurement_gives_another_verdict(id, quick, monkeypatch):
    module, name, stand_in, becomes = STAND_INS[id]
    monkeypatch.setattr(module, name, stand_in)
    assert verdict(id) is becomes


def test_the_initialisation_is_gpt2s_at_the_width_of_the_largest(monkeypatch):
    for name in ("HISTOGRAM", "PUBLISHED"):
        monkeypatch.setattr(network_parts, name, Network(d_model=1600))
    assert verdict("P62") is Verdict.HOLDS


def test_an_mlp_with_curved_activation_is_noticed(monkeypatch):
    definition.forget()
    monkeypatch.setattr(torch, "relu", torch.tanh)
    assert verdict("A15") is Verdict.FAILS
    definition.forget()


def test_the_wrong_loss_factor_is_not_confirmed(monkeypatch):
    """A correction that is itself wrong must show."""
    monkeypatch.setattr(network_parts, "mean_square", network_parts.half_mean)
    monkeypatch.setattr(network_parts, "half_mean", lambda Y: lambda F: (F - Y).square().sum())
    assert verdict("P65") is Verdict.FAILS


def test_entries_of_a_network_are_those_of_autograd():
    network = Network(d_model=4, sequences=2)
    model = Transformer(d_model=4, seed=5, embedding_std=0.5, dtype=torch.float64)
    batch = TASK.batch(2, seed=networks.DATA_SEED, carries="none")
    places = {"q": "blocks.0.attention.W_Q", "v": "blocks.0.attention.W_V"}
    dense = dense_network_hessian(
        model, [batch["tokens"]], lambda logits, _: TASK.cross_entropy(logits[0], batch), whole(*places.values())
    )
    for block, name in places.items():
        wanted = dense.block("full", name, name)
        found = networks.entries(network, 5, 0.5)[block]
        assert torch.allclose(found, wanted, rtol=1e-8, atol=1e-12)
        assert math.isclose(networks.norms(network, 5, 0.5)[0, block, "full"], float(wanted.norm()), rel_tol=1e-8)


def test_histograms_overlap_with_themselves_only(monkeypatch):
    block = samples.normal(0, 8, 8)
    for factor, share in ((1.0, 1.0), (1e6, 0.0)):
        monkeypatch.setattr(networks, "entries", lambda *_, factor=factor: {"q": block, "v": factor * block})
        assert math.isclose(networks.histogram_overlap(networks.HISTOGRAM, 0), share, abs_tol=1e-12)


def test_gpt2_has_the_same_spread_at_every_width():
    assert all(GPT2Config(n_embd=d).initializer_range == network_parts.GPT2_STD for d in network_parts.GPT2_WIDTHS)
