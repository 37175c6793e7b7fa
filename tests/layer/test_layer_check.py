"""A layer against autograd and against the predicted growth: right formulas pass, wrong ones are noticed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import hessianlens as hl
from hessianlens.layer.layer_check import LayerCheck, layer_check_sections


def check_of(length: int, d_model: int, d_k: int, seed: int, **options: Any) -> LayerCheck:
    layer = hl.SelfAttention.random(d_model=d_model, d_k=d_k, seed=seed, dtype=torch.float64, **options)
    generator = torch.Generator().manual_seed(seed + 1)
    X, Y = torch.randn(2, 1, length, d_model, generator=generator, dtype=torch.float64)
    return LayerCheck(layer, X, hl.SquareLoss(Y))


def test_the_three_computations_agree_to_rounding() -> None:
    found = check_of(7, 5, 3, seed=3).agreements()
    assert [one.part for one in found] == ["outer", "functional", "full"]
    assert all(0 <= one.worst < 1e-13 and one.verdict == "agree" for one in found)


def test_a_wrong_closed_form_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = hl.layer.AttentionHessian._functional_terms

    def wrong(self: Any, row: Any, column: Any) -> Any:
        terms = right(self, row, column)
        return terms if terms is None else [dataclasses.replace(t, coefficient=1.001 * t.coefficient) for t in terms]

    monkeypatch.setitem(hl.layer.hessian._BLOCK_TERMS, "functional", wrong)
    found = check_of(7, 5, 3, seed=3).agreements()
    assert {one.part: one.verdict for one in found} == {"outer": "agree", "functional": "differ", "full": "agree"}
    _, summary = layer_check_sections(found, [])
    assert "do not agree on functional" in dict(summary)["Agreement with autograd"]


def test_one_hot_attention_is_not_mistaken_for_a_wrong_formula() -> None:
    found = check_of(2, 4, 2, seed=1, temperature=1e-3).agreements()
    assert all(one.agree for one in found)
    assert any(one.worst > 1e-6 and one.verdict == "agree up to rounding" for one in found)


@pytest.mark.parametrize("activation", ["softmax", "linear", "sigmoid", "relu_normalised"])
def test_blocks_grow_as_the_activation_predicts(activation: str) -> None:
    found = check_of(7, 5, 3, seed=3, activation=activation).growth()
    assert len(found) == 8
    assert {one.verdict for one in found} == {"agree"}, found
    assert any(one.exponent is not None for one in found)


def test_a_wrong_prediction_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlens.layer.layer_check.predicted_growth", lambda *arguments, **norms: 9)
    found = check_of(5, 4, 2, seed=0).growth()
    assert {one.verdict for one in found} == {"differ", "zero here"}
