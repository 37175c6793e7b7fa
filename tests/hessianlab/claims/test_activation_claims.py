"""The claims of the article on softmax and sigmoid notice when things are different."""

import pytest
import torch

from hessianlab.claims import quantities
from hessianlab.claims.finding import Verdict
from hessianlab.claims.topics import activation_blocks, activation_growth, activation_moments
from hessianlens.layer import predicted_growth
from tests.hessianlab.claims.verdicts import verdict


def uniform(activation, part, row, column, scales):
    return [6.0]


STAND_INS = {
    "A10": (activation_blocks, "orders", lambda a, *_, **__: 2.0 if a == "softmax" else 0.0, Verdict.HOLDS),
    "A11": (activation_growth, "exponents", lambda *_: [5.0], Verdict.FAILS),
    "A12": (activation_growth, "exponents", uniform, Verdict.HOLDS),
    "A13": (activation_blocks, "orders", lambda *_, **__: 0.1, Verdict.HOLDS),
    "A14": (activation_growth, "_spread", lambda a: 0.0 if a == "sigmoid" else 4.0, Verdict.HOLDS),
    "A18": (activation_blocks, "hessian", lambda a, *rest: quantities.hessian("linear", *rest), Verdict.HOLDS),
    "A19": (activation_blocks, "negative_share", lambda a, *_: 0.4 if a == "softmax" else 0.0, Verdict.HOLDS),
    "A22": (activation_moments, "third_moment_along", lambda A, X, u: X[:, :, None] * X[:, None], Verdict.FAILS),
    "A23": (activation_growth, "_peaked", lambda s, f: activation_growth.PeakedLayer(1.0, *4 * [1 / f]), Verdict.HOLDS),
    "A24": (
        activation_moments,
        "outer_from",
        lambda one, second: torch.zeros(2 * [one.weights["Q"].numel()]),
        Verdict.HOLDS,
    ),
}


@pytest.mark.expensive
@pytest.mark.parametrize("id", STAND_INS)
def test_another_measurement_gives_another_verdict(id, monkeypatch):
    module, name, stand_in, becomes = STAND_INS[id]
    monkeypatch.setattr(activation_blocks, "norm_ratio", lambda *_: 1.0)  # only drawn
    monkeypatch.setattr(module, name, stand_in)
    assert verdict(id) is becomes


@pytest.mark.parametrize(
    ("gap", "becomes"), [(0.02, Verdict.FAILS), (0.2, Verdict.HOLDS)], ids=["within chance", "beyond chance"]
)
def test_chance_does_not_make_sigmoid_less_indefinite(gap, becomes, monkeypatch):
    """Sigmoid's share is lower on average in both cases; seeds differ by 0.1 to either side."""

    def share(attention, seed, sigma):
        return 0.4 if attention == "softmax" else 0.4 - gap + 0.1 * (-1) ** seed

    monkeypatch.setattr(activation_blocks, "negative_share", share)
    assert verdict("A19") is becomes


def test_normalised_exp_is_softmax_and_would_have_the_structure(monkeypatch):
    """With the exponential in place of sigmoid and ReLU, normalisation does bring the central moments."""
    exp = activation_moments._elementwise("exp")
    monkeypatch.setattr(activation_moments, "_elementwise", lambda name: exp)
    assert verdict("A25") is Verdict.HOLDS


def test_a_convex_third_loss_makes_the_outer_product_definite(monkeypatch):
    monkeypatch.setattr(activation_blocks, "_loss", lambda name, Y: activation_blocks.SquareLoss(Y))
    assert verdict("A4") is Verdict.HOLDS


def test_negative_mass_of_known_matrices():
    assert quantities.negative_mass(torch.diag(torch.tensor([3.0, -1.0]))) == 0.25
    assert quantities.negative_mass(torch.eye(3)) == 0.0 == quantities.negative_mass(torch.zeros(2, 2))
    assert quantities.extremes(torch.diag(torch.tensor([4.0, -1.0]))) == (-0.25, 1.0)


def test_exponents_of_a_layer_are_the_predicted_ones():
    for activation in ("softmax", "sigmoid", "linear", "relu_normalised"):
        for row, column in ("QQ", "VQ", "VV"):
            found = quantities.exponents(activation, "outer", row, column, (1e-3, 1e-2))
            assert all(abs(e - predicted_growth(activation, "outer", row, column)) < 0.05 for e in found)
