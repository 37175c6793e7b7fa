"""Weights of rows of scores against torch, and the limits of number formats against the formats themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hessianlens.attention.row_profile import DTYPES, breaking_factor, precisions, row_facts
from hessianlens.attention.row_weights import (
    attention_weights,
    exp_limit,
    log_softmax,
    naive_softmax,
    vanishing_gap,
    weights_jacobian,
)
from hessianlens.errors import InputError
from hessianlens.notation import ACTIVATION_NAMES

SCORES = torch.randn(3, 5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MASK = torch.rand(5, 7, generator=torch.Generator().manual_seed(1)) < 0.7
MASK[2] = False  # a row that sees nothing
HIDDEN = SCORES.masked_fill(~MASK, -torch.inf)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_softmax_and_its_logarithm_are_torchs(temperature: float) -> None:
    torch.testing.assert_close(attention_weights(SCORES, temperature=temperature), (SCORES / temperature).softmax(-1))
    torch.testing.assert_close(naive_softmax(SCORES, temperature), (SCORES / temperature).softmax(-1))
    torch.testing.assert_close(log_softmax(SCORES, temperature=temperature), (SCORES / temperature).log_softmax(-1))
    seen = MASK.any(-1)
    wanted = (HIDDEN / temperature).softmax(-1)[:, seen]
    torch.testing.assert_close(attention_weights(SCORES, mask=MASK, temperature=temperature)[:, seen], wanted)
    torch.testing.assert_close(
        log_softmax(SCORES, MASK, temperature)[:, seen], (HIDDEN / temperature).log_softmax(-1)[:, seen]
    )


def test_a_row_that_sees_nothing() -> None:
    assert not bool(attention_weights(SCORES, mask=MASK)[:, 2].any())
    assert bool(torch.isneginf(log_softmax(SCORES, MASK)[:, 2]).all())
    assert bool(torch.isnan(HIDDEN.softmax(-1)[:, 2]).all())  # which is why
    facts = row_facts([1.0, 2.0], hidden=[0, 1])
    assert facts.weights == (0.0, 0.0) and facts.gradient_norm == 0 and facts.entropy is None
    assert "0/0" in facts.remark


def by_hand(name: str, row: Tensor) -> Tensor:
    return {
        "softmax": lambda t: t.exp() / t.exp().sum(),
        "linear": lambda t: t,
        "sigmoid": torch.sigmoid,
        "sigmoid_log_length": lambda t: torch.sigmoid(t - math.log(len(t))),
        "relu": torch.relu,
        "tanh": torch.tanh,
        "exp": torch.exp,
        "relu_normalised": lambda t: torch.relu(t) / torch.relu(t).sum(),
        "row_sum": lambda t: t / t.sum(),
    }[name](row)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_alternatives_and_their_derivatives(name: str) -> None:
    row, t = torch.tensor([0.3, -1.2, 2.0, 0.8], dtype=torch.float64), 0.5
    torch.testing.assert_close(attention_weights(row, name, temperature=t), by_hand(name, row / t))
    jacobian = torch.autograd.functional.jacobian(lambda s: by_hand(name, s / t), row)
    torch.testing.assert_close(weights_jacobian(row, name, temperature=t), jacobian)
    assert row_facts(row.tolist(), name, temperature=t).gradient_norm == pytest.approx(float(jacobian.norm()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_are_those_of_the_format(dtype: torch.dtype) -> None:
    limit, gap = exp_limit(dtype), vanishing_gap(dtype)
    step = 0.01 * limit  # formats of few digits step widely
    assert bool(torch.isinf(torch.tensor(limit + step, dtype=torch.float64).exp().to(dtype)))
    assert not bool(torch.isinf(torch.tensor(limit - step, dtype=torch.float64).exp().to(dtype)))
    assert float(torch.tensor(-1.01 * gap, dtype=torch.float64).exp().to(dtype)) == 0
    assert float(torch.tensor(-0.99 * gap, dtype=torch.float64).exp().to(dtype)) > 0


@pytest.mark.parametrize("scores", [[1.0, 1.0, 1.0], [3.0, -2.0], [-1.0, -4.0]])
def test_the_definition_breaks_where_it_is_said_to(scores: list[float]) -> None:
    row = torch.tensor(scores, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        factor = breaking_factor(scores, dtype)
        assert factor is not None
        assert float(naive_softmax((0.99 * factor * row).to(dtype)).sum()) == pytest.approx(1)
        broken = float(naive_softmax((1.01 * factor * row).to(dtype)).sum())
        assert math.isnan(broken) or broken == 0  # not a number, or everything over infinity
        assert bool(torch.isfinite(attention_weights((1.01 * factor * row).to(dtype))).all())
    assert breaking_factor([0.0, -5.0], torch.float32) is None


def test_formats_side_by_side() -> None:
    found = {one.dtype: one for one in precisions([0.0, 100.0, 5.0], hidden=[2])}
    assert found["float32"].naive is None and found["float64"].naive is not None
    assert all(one.shifted[1] == 1 for one in found.values())
    assert {one.dtype: one for one in precisions([88.5, 88.5, 88.5])}["float32"].naive is None  # 0, 0, 0


def test_entropy_only_of_distributions() -> None:
    assert row_facts([0.0, 0.0]).entropy == pytest.approx(math.log(2))
    assert row_facts([1.0, -0.5], "row_sum").entropy is None
    assert "negative" in row_facts([1.0, -0.5], "row_sum").remark
    assert "sum to" in row_facts([1.0, 2.0], "sigmoid").remark
    assert "0 everywhere" in row_facts([-1.0, -2.0], "relu_normalised").remark


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attention_weights(torch.tensor([1, 2])), "scores: got torch.int64"),
        (lambda: attention_weights(torch.ones(2), mask=torch.ones(2)), "mask: got torch.float32"),
        (lambda: attention_weights(torch.ones(2), mask=torch.ones(3, dtype=torch.bool)), r"mask: got shape \(3,\)"),
        (lambda: attention_weights(torch.ones(2), temperature=0.0), "temperature: got 0.0"),
        (lambda: row_facts([]), "scores: got none"),
        (lambda: row_facts([1.0], hidden=[1]), "mask: got 1"),
    ],
)
def test_bad_input(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()  # type: ignore[operator]
