"""The claims about design choices and standardised tokens notice when things are different."""

import pytest

from hessianlab.claims import definition
from hessianlab.claims.finding import Verdict
from hessianlab.claims.samples import sample
from hessianlab.claims.topics import design_choices, standardisation
from hessianlab.paper import kron
from tests.hessianlab.claims.verdicts import verdict


@pytest.fixture(autouse=True)
def afresh():
    """No measurement from before, and none left behind."""
    definition.forget()
    yield
    definition.forget()


def as_a_chain_of_linear_attention(kind, depth, scale, weights=""):
    """The powers that Section 4.1 derives, whatever is measured."""
    return [2.0 if kind == standardisation.MLP else 2.0 * 3**depth] * 4


STAND_INS = {
    "P69": (design_choices, "_samples", lambda: (sample(0, 6, 4, 3, token_scale=1000.0),), Verdict.FAILS),
    "P70": (design_choices, "_regauged", lambda one: one, Verdict.FAILS),
    "P71": (design_choices, "kron", lambda *factors: 2 * kron(*factors), Verdict.FAILS),
    "P72": (
        design_choices,
        "_data_spread",
        lambda activation, pair: 4.0 * pair * (activation != "linear"),
        Verdict.HOLDS,
    ),
    "P73": (standardisation, "_powers", as_a_chain_of_linear_attention, Verdict.HOLDS),
    "P74": (standardisation, "growth", lambda n, s, key, r: 3.0 * (n.norm == "post" and key[1] == "q"), Verdict.HOLDS),
}


@pytest.mark.parametrize("id", STAND_INS)
def test_the_verdict_follows_the_measurement(id, monkeypatch):
    module, name, other, expected = STAND_INS[id]
    monkeypatch.setattr(module, name, other)
    assert verdict(id) is expected


def test_an_mlp_has_the_same_power_at_every_depth():
    powers = [standardisation._powers(standardisation.MLP, depth, 0.02) for depth in (1, 4)]
    assert all(power == pytest.approx(2) for row in powers for power in row)
