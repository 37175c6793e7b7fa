"""The claims of the article on softmax notice when things are different."""

import math

import pytest
import torch

from hessianlab.claims import ledger
from hessianlab.claims.finding import Verdict
from hessianlab.claims.score_rows import apart, by_relu_sum, dot_products, from_uniform, row
from hessianlab.claims.topics import scores, softmax_alternatives, softmax_masking, softmax_values
from tests.hessianlab.claims.verdicts import verdict


@pytest.mark.parametrize(
    ("id", "scores", "printed"),
    [
        ("C1", (2.8, 1.2, 0.5, 3.1), [0.28, 0.06, 0.03, 0.38]),
        ("C11", (10, 9, 8), [0.47, 0.33, 0.2]),
        ("C16", (5, 4.4, 3.9), [0.54, 0.29, 0.17]),
    ],
)
def test_the_printed_numbers_would_hold_if_softmax_gave_them(monkeypatch, id, scores, printed):
    original = softmax_values.softmax

    def obliging(given, temperature=1.0):
        return printed if (tuple(given), temperature) == (scores, 1.0) else original(given, temperature)

    monkeypatch.setattr(softmax_values, "softmax", obliging)
    assert verdict(id) is Verdict.HOLDS


def tilted(scores, temperature=1.0):
    return torch.softmax(row(scores) / (temperature * 1.05), -1).tolist()


@pytest.mark.parametrize(
    ("id", "module", "name", "stand_in", "becomes"),
    [
        ("C12", softmax_values, "softmax", lambda s: [0.9, 0.05, 0.05], Verdict.FAILS),
        ("C15", softmax_values, "softmax", tilted, Verdict.FAILS),
        ("C37", softmax_values, "softmax", tilted, Verdict.FAILS),
        ("C8", softmax_masking, "divided", lambda s: [1.5, 1.0, 0.5], Verdict.FAILS),
        ("C34", softmax_masking, "divided", lambda s: [0.69, 0.31, 0.0, 0.0], Verdict.FAILS),
        ("C35", softmax_masking, "divided", lambda s: [x / 3 for x in s], Verdict.HOLDS),
        ("C7", softmax_masking, "MASKED", -1e9, Verdict.HOLDS),
        ("C26", softmax_masking, "by_row_sum", lambda t: t.softmax(-1), Verdict.FAILS),
        ("C27", softmax_masking, "by_row_sum", lambda t: (0.5 * t).softmax(-1), Verdict.HOLDS),
        ("C28", softmax_alternatives, "as_printed_code", softmax_alternatives.feature_map, Verdict.HOLDS),
        ("C4", softmax_values, "printed_code", lambda t: t.exp() / t.exp().sum(), Verdict.FAILS),
        ("C17", scores, "_one_hot_temperature", lambda seed: 1.0, Verdict.FAILS),
        ("C22", scores, "_INDEPENDENT", {"equal": scores._equal_components}, Verdict.FAILS),
    ],
)
def test_another_computation_gives_another_verdict(monkeypatch, id, module, name, stand_in, becomes):
    before = ledger.read_verdicts(ledger.RECORDED_VERDICTS)[id]["verdict"]
    monkeypatch.setattr(module, name, stand_in)
    assert before != str(becomes) and verdict(id) is becomes


def test_masking_is_what_makes_attention_causal(monkeypatch):
    attend = softmax_masking.attend
    monkeypatch.setattr(softmax_masking, "attend", lambda X, layer, masked: attend(X, layer, not masked))
    assert verdict("C6") is Verdict.FAILS and verdict("C45") is Verdict.FAILS


def test_magnitudes_notice_a_factor(monkeypatch):
    monkeypatch.setattr(scores, "dot_products", lambda *a: dot_products(*a) * math.sqrt(math.pi / 2))
    assert verdict("C14") is Verdict.HOLDS
    monkeypatch.setattr(scores, "dot_products", lambda *a: dot_products(*a) * 2)
    assert verdict("C14") is Verdict.FAILS


def test_guarded_rows_would_work(monkeypatch):
    monkeypatch.setattr(softmax_alternatives, "by_relu_sum", lambda t: by_relu_sum(t + 1e3))
    assert verdict("C30") is Verdict.HOLDS


def test_bounded_functions_are_what_breaks_the_claim_on_normalisation(monkeypatch):
    excess = softmax_alternatives._excess
    monkeypatch.setattr(softmax_alternatives, "_excess", lambda name, seed: excess("linear", seed))
    assert verdict("C44") is Verdict.HOLDS


def test_one_hot_rows_need_large_scores(monkeypatch):
    monkeypatch.setattr(scores, "dot_products", lambda seed, d_k, *a: dot_products(seed, d_k, *a) / math.sqrt(d_k))
    assert verdict("C18") is Verdict.FAILS


def test_rows_by_hand():
    assert apart([1.0, 0.0], [0.25, 0.75]) == 0.75
    assert from_uniform(row([1.0, 0.0])) == 0.5 and from_uniform(row([0.5, 0.5])) == 0.0
    products = dot_products(3, 16, 5000, 3)
    assert products.shape == (5000, 3) and torch.equal(products, dot_products(3, 16, 5000, 3))
    assert float(products.var()) == pytest.approx(16, rel=0.05)
