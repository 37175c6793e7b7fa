"""Saturated attention: blocks of any size keep their digits, against a Hessian in hundreds of digits.

Tokens x 10 and a temperature of 0.01 give scores of some thousands, weights of 1e-300 beside ones, and blocks of 1e-50
or 1e-180. A score T is known to eps |T|, and so is exp(T) to the same *relative* error: that, and no more, is allowed.
"""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch

import hessianlens as hl
from hessianlens.attention.activations import RowNormalised, Sigmoid
from tests.oracles import high_precision as oracle

DOUBLE = torch.float64
LENGTH, WIDTH, INNER = 4, 3, 2
SMALLEST = 1e-290
"""Blocks below are zero, or about to be, in float64."""
ACTIVATIONS = {name: name for name in ("softmax", "sigmoid", "tanh", "relu", "relu_normalised", "row_sum")}
ACTIVATIONS["sigmoid / row sum"] = RowNormalised(Sigmoid())
SATURATED = {"tokens": 10.0, "temperature": 0.01}
PLAIN = {"tokens": 1.0, "temperature": 1.0}
CASES = {
    "softmax": {"activation": "softmax", "seed": 0, **SATURATED},
    "softmax, smaller": {"activation": "softmax", "seed": 1, **SATURATED},
    "softmax, causal": {"activation": "softmax", "seed": 0, "causal": True, **SATURATED},
    "softmax, cross-entropy": {"activation": "softmax", "seed": 0, "loss": "cross-entropy", **SATURATED},
    "sigmoid": {"activation": "sigmoid", "seed": 0, **SATURATED},
    "tanh": {"activation": "tanh", "seed": 2, **SATURATED},
    "relu, cross-entropy": {"activation": "relu", "seed": 1, "loss": "cross-entropy", **SATURATED},
    "relu over its sum": {"activation": "relu_normalised", "seed": 0, **SATURATED},
    "relu over its sum, cross-entropy": {
        "activation": "relu_normalised",
        "seed": 0,
        "loss": "cross-entropy",
        **SATURATED,
    },
    "scores over their sum": {"activation": "row_sum", "seed": 0, **SATURATED},
    "sigmoid over its sum": {"activation": "sigmoid / row sum", "seed": 0, **SATURATED},
    "softmax, half saturated": {"activation": "softmax", "seed": 2, "tokens": 3.0, "temperature": 0.3},
    "softmax, plain": {"activation": "softmax", "seed": 0, **PLAIN},
    "sigmoid, plain": {"activation": "sigmoid", "seed": 0, **PLAIN},
    "tanh, plain": {"activation": "tanh", "seed": 0, **PLAIN},
}
TINY = ("softmax", "softmax, smaller", "softmax, cross-entropy", "sigmoid", "tanh", "relu, cross-entropy")
"""Cases with a block that is smaller than the rounding of its ingredients."""


class Setting:
    """A layer at one sequence, in both arithmetics."""

    def __init__(
        self,
        activation: str,
        seed: int,
        tokens: float,
        temperature: float,
        loss: str = "square",
        causal: bool = False,
        dtype: torch.dtype = DOUBLE,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.X = (tokens * torch.randn(LENGTH, WIDTH, generator=generator, dtype=DOUBLE)).to(dtype)
        options = {"activation": ACTIVATIONS[activation], "temperature": temperature, "causal": causal}
        self.layer = hl.SelfAttention.random(WIDTH, INNER, WIDTH, seed=seed, dtype=dtype, **options)
        if loss == "square":
            targets = torch.randn(LENGTH, WIDTH, generator=generator, dtype=DOUBLE).to(dtype)
            self.loss = hl.SquareLoss(targets)
        else:
            targets = torch.randint(WIDTH, (LENGTH,), generator=generator)
            self.loss = hl.CrossEntropyLoss(targets)
        state = self.layer.attend(self.X[None])
        largest = float(state.scores.abs().max()) + (0 if loss == "square" else float(state.output.abs().max()))
        self.relative = 64 * torch.finfo(dtype).eps * (1 + largest)
        self.exact = oracle.Layer(self.X, self.layer.parameters, activation, state.scale, causal, loss, targets)
        self.true = oracle.hessians(self.exact)

    def block(self, part: str, row: str, column: str):
        starts = {"Q": 0, "K": WIDTH * INNER, "V": 2 * WIDTH * INNER}
        sizes = {"Q": WIDTH * INNER, "K": WIDTH * INNER, "V": WIDTH * WIDTH}
        rows, columns = (slice(starts[name], starts[name] + sizes[name]) for name in (row, column))
        return self.true[part][rows, columns]


@cache
def setting(case: str) -> Setting:
    return Setting(**CASES[case])


def names(part: str) -> str:
    return "QK" if part.startswith("t_") else "QKV"


def assert_all_digits(H: hl.layer.AttentionHessian, at: Setting, smallest: float = SMALLEST) -> None:
    for part in at.true:
        for row, column in itertools.product(names(part), repeat=2):
            true, op, what = at.block(part, row, column), H.part(part)[row, column], f"{part}[{row}, {column}]"
            size = float(oracle.norm(true))
            if size < smallest:
                assert float(op.to_dense().abs().max()) <= 1e6 * smallest, what
                continue
            assert oracle.error(op.to_dense(), true) <= at.relative, what
            assert float(op.frobenius_norm()) == pytest.approx(size, rel=at.relative, abs=0), f"norm of {what}"
            v = torch.randn(op.shape[1], generator=torch.Generator().manual_seed(1), dtype=DOUBLE).to(op.dtype)
            assert oracle.error(op @ v, true @ oracle.constants(v)) <= 10 * at.relative, f"product of {what}"
            if row == column:
                assert oracle.error(op.diagonal(), true.diagonal()) <= 10 * at.relative, f"diagonal of {what}"
                gap = abs(float(op.trace()) - float(true.trace()))
                assert gap <= at.relative * float(oracle.largest(true)) * len(true), f"trace of {what}"


@pytest.mark.expensive
@pytest.mark.parametrize("case", CASES)
def test_every_part_of_every_block(case: str) -> None:
    at = setting(case)
    assert_all_digits(hl.attention_hessian(at.layer, at.X, at.loss), at)


@pytest.mark.long
@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("case", CASES)
def test_the_paths_of_large_sizes(case: str) -> None:
    at = setting(case)
    assert_all_digits(hl.attention_hessian(at.layer, at.X, at.loss), at)


@pytest.mark.expensive
@pytest.mark.parametrize("case", TINY)
def test_there_is_something_to_lose(case: str) -> None:
    """Some block is far smaller than the rounding of the largest one, and yet no zero."""
    at = setting(case)
    sizes = [float(oracle.norm(at.block("outer", name, name))) for name in "QKV"]
    assert SMALLEST < min(sizes) < 1e-40 * max(1.0, max(sizes)) or max(sizes) < 1e-40


@pytest.mark.parametrize("form", ["by token", "low rank", "coupled"])
def test_every_form_of_curvature(form: str) -> None:
    """The square loss, written down as matrices a token, as roots, or between all tokens."""
    at = setting("softmax")
    derivatives = at.loss.derivatives(at.layer(at.X)[None])
    c, one = 2 / (LENGTH * WIDTH), torch.eye(WIDTH, dtype=DOUBLE)
    curvature = {
        "by token": c * one.expand(LENGTH, WIDTH, WIDTH),
        "low rank": hl.losses.LowRankTokenCurvature(c**0.5 * one.expand(LENGTH, WIDTH, WIDTH)),
        "coupled": c * torch.eye(LENGTH * WIDTH, dtype=DOUBLE).reshape(LENGTH, WIDTH, LENGTH, WIDTH),
    }[form]
    assert_all_digits(hl.attention_hessian(at.layer, at.X, grad=derivatives.gradient, curvature=curvature), at)


@pytest.mark.long
@pytest.mark.parametrize("activation, seed", [("softmax", 1), ("softmax", 2), ("sigmoid", 0), ("tanh", 2)])
def test_single_precision(activation: str, seed: int) -> None:
    """In float32 the same holds with its own eps and range."""
    at = Setting(activation, seed, tokens=10.0, temperature=0.1, dtype=torch.float32)
    H = hl.attention_hessian(at.layer, at.X, at.loss)
    assert_all_digits(H, at, smallest=1e-30)
