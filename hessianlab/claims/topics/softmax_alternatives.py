"""Attention without softmax, and what each of its two steps is for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, equal, share, true
from hessianlab.claims.quantities import named
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import by_relu_sum, by_row_sum, dot_products, from_uniform, random_layers, row
from hessianlens.attention import SelfAttention


@claim("C24")
def raw_scores() -> Finding:
    """Half of them negative; cubic growth, to the ninth power in two layers."""
    seed = first_seed()
    negative, raw, twice, soft = [], [], [], []
    for layer, X in random_layers(seed, 5, "linear"):
        other = replace(layer, activation="softmax")
        negative.append(float((layer.attention(X) < 0).double().mean()))
        raw.append(_exponent(layer, X))
        twice.append(_exponent(layer, X, times=2))
        soft.append(float((other(10 * X).norm(dim=-1) / (10 * X @ other.W_V).norm(dim=-1).max()).max()))
    return Finding(
        checks=(
            at_least("mean share of negative weights over 15 layers", sum(negative) / 15, 0.25),
            at_most("largest distance from 3 of the power of the token scale, one layer", _off(raw, 3), 1e-9),
            at_most("largest distance from 9 of that power, two layers", _off(twice, 9), 1e-9),
            at_most("softmax output over the largest value, largest", max(soft), 1 + 1e-12),
        )
    )


def _off(powers: Sequence[float], expected: float) -> float:
    return max(abs(power - expected) for power in powers)


def _exponent(layer: SelfAttention, X: Tensor, times: int = 1) -> float:
    """Power of the token scale in the output of the layer applied `times` times."""
    small, large = X, 10 * X
    for _ in range(times):
        small, large = layer(small), layer(large)
    return math.log10(float(large.norm() / small.norm()))


LENGTHS = (64, 128, 256, 512)


def as_printed_code(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """ReLU of the score matrix, each row divided by its sum, times the values."""
    return by_relu_sum(Q @ K.T) @ V


def feature_map(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Linear attention proper: ReLU of queries and keys apart, so that keys meet values first."""
    q, k = torch.relu(Q), torch.relu(K)
    return (q @ (k.T @ V)) / (q @ k.sum(0))[:, None]


@claim("C28")
def linear_cost() -> Finding:
    """The printed code forms the n x n matrix and cannot avoid it."""
    seed = first_seed()
    printed, linear = (_operations(function, seed) for function in (as_printed_code, feature_map))
    ranks = [int(torch.linalg.matrix_rank(torch.relu(_scores(seed + n)))) for n in range(5)]
    tokens = [normal(seed + n, 32, 4) for n in range(3)]
    xs = tuple(map(float, LENGTHS))
    return Finding(
        checks=(at_most("power of n in the operations of the printed code", _power(printed), 1.05),),
        support=(
            close("power of n in the operations of the printed code", _power(printed), 2.0, 0.05),
            close("power of n with ReLU on queries and keys apart", _power(linear), 1.0, 0.05),
            at_least("smallest rank of ReLU(Q K^T), where Q K^T has 4", min(ranks), 16),
            at_least(
                "largest gap between the two",
                float((as_printed_code(*tokens) - feature_map(*tokens)).abs().nan_to_num().max()),
                0.1,
            ),
        ),
        example=f"n = {LENGTHS[0]} to {LENGTHS[-1]} tokens: {printed[0]:,} to {printed[-1]:,} operations as printed "
        f"(x {printed[-1] / printed[0]:.0f}), {linear[0]:,} to {linear[-1]:,} with ReLU apart (x "
        f"{linear[-1] / linear[0]:.0f}).",
        curves=Curves.log_log(
            "tokens n",
            "operations",
            {
                "ReLU(Q K^T), as printed": (xs, tuple(map(float, printed))),
                "ReLU(Q), ReLU(K) apart": (xs, tuple(map(float, linear))),
            },
        ),
    )


def _scores(seed: int) -> Tensor:
    Q, K = normal(seed, 2, 32, 4)
    return Q @ K.T


def _operations(function: Callable[[Tensor, Tensor, Tensor], Tensor], seed: int) -> list[int]:
    counted = []
    for length in LENGTHS:
        with FlopCounterMode(display=False) as counter:
            function(*normal(seed, 3, length, 16))
        counted.append(counter.get_total_flops())
    return counted


def _power(operations: Sequence[int]) -> float:
    return math.log(operations[-1] / operations[0]) / math.log(LENGTHS[-1] / LENGTHS[0])


@claim("C29")
def exact_zeros() -> Finding:
    """About half."""
    seed = first_seed()
    checks = []
    for keys in (4, 16, 64):
        weights = torch.relu(dot_products(seed + keys, 64, 1000, keys))
        checks.append(at_least(f"share of exact zeros, rows of {keys}", float((weights == 0).double().mean()), 0.25))
    shares = [float((layer.attention(X) == 0).double().mean()) for layer, X in random_layers(seed, 5, "relu")]
    return Finding(checks=(*checks, at_least("mean share of exact zeros over 15 layers", sum(shares) / 15, 0.25)))


@claim("C30")
def relu_works() -> Finding:
    """Unless no score of a row is positive."""
    seed = first_seed()
    lengths = (1, 2, 3, 4, 6, 8)
    rows = {keys: dot_products(seed + keys, 64, 2000, keys) for keys in lengths}
    empty = {keys: int((scores <= 0).all(-1).sum()) for keys, scores in rows.items()}
    proper = sum(_proper(by_relu_sum(scores)) for scores in rows.values())
    kept = [scores[(scores > 0).any(-1)] for scores in rows.values()]
    total = sum(map(len, kept))
    xs = tuple(map(float, lengths))
    return Finding(
        checks=(share("proper rows", proper, 2000 * len(lengths)),),
        conditional=(
            share("proper rows among those with a positive score", sum(_proper(by_relu_sum(s)) for s in kept), total),
        ),
        support=tuple(
            close(f"rows of {n} without a positive score, share", empty[n] / 2000, 0.5**n, _four_errors(0.5**n))
            for n in lengths
        ),
        example=f"scores -1, -2: ReLU gives 0, 0, and 0/0: {shown(by_relu_sum(row([-1, -2])).tolist())}.",
        curves=Curves(
            "visible keys",
            "share of rows that are 0/0",
            {
                "measured": (xs, tuple(max(empty[n], 0.5) / 2000 for n in lengths)),
                "2^-n": (xs, tuple(0.5**n for n in lengths)),
            },
            log_y=True,
        ),
    )


def _four_errors(share: float) -> float:
    """Four standard errors of a share of 2000 rows."""
    return round(4 * math.sqrt(share * (1 - share) / 2000), 4)


def _proper(weights: Tensor) -> int:
    return int((((weights.sum(-1) - 1).abs() < 1e-12) & (weights >= 0).all(-1)).sum())


def _squares(scores: Tensor) -> Tensor:
    return by_row_sum(scores.square())


def _sharp_relu(scores: Tensor) -> Tensor:
    return by_row_sum(torch.relu(scores) ** 8)


@claim("C43")
def without_exponential() -> Finding:
    """Only if the sign of the scores is kept; emphasis can be had by a power."""
    seed = first_seed()
    scores = dot_products(seed, 64, 1000, 16) / 8
    keeping = {"raw scores": scores, "row sum": by_row_sum(scores)}
    kept = scores[(scores > 0).any(-1)]
    positive = {"ReLU, row sum": by_relu_sum(kept), "squares, row sum": _squares(kept)}
    soft, sharper = _peak(scores.softmax(-1)), _peak(_sharp_relu(kept))
    lifted = scores - scores.amin(-1, keepdim=True) + 1
    flatter = int((from_uniform(by_row_sum(lifted)) < from_uniform(lifted.softmax(-1))).sum())
    return Finding(
        checks=(
            *(_negative(name, weights) for name, weights in (keeping | positive).items()),
            at_most("median largest weight, ReLU^8 and row sum, against softmax's", sharper, round(soft, 3)),
        ),
        conditional=(
            *(_negative(name, weights) for name, weights in keeping.items()),
            share("rows with scores of at least 1 that are flatter by row sum than by softmax", flatter, 1000),
        ),
        support=(
            equal("negative weights, ReLU and row sum", int((positive["ReLU, row sum"] < 0).sum()), 0),
            equal("negative weights, squares and row sum", int((positive["squares, row sum"] < 0).sum()), 0),
            at_least("median largest weight, ReLU^8 over softmax", sharper / soft, 1.5),
        ),
        example=f"scores 3, -2, 1: ReLU and row sum {shown(by_relu_sum(row([3, -2, 1])).tolist())}, to the eighth "
        f"power {shown(_sharp_relu(row([3, -2, 1])).tolist(), 4)}, softmax "
        f"{shown(row([3, -2, 1]).softmax(-1).tolist(), 4)}.",
    )


def _peak(weights: Tensor) -> float:
    return float(weights.amax(-1).median())


def _negative(name: str, weights: Tensor) -> Check:
    return share(f"rows with a negative weight, {name}", int((weights < 0).any(-1).sum()), len(weights), 0.8)


@claim("C44")
def without_normalisation() -> Finding:
    """Bounded functions need no normalisation for that."""
    seed = first_seed()
    excess = {name: _excess(name, seed) for name in ("linear", "relu", "exp", "sigmoid", "tanh", "softmax")}
    unbounded = ("linear", "relu", "exp")
    return Finding(
        checks=tuple(_exceeds(name, excess[name]) for name in (*unbounded, "sigmoid", "tanh")),
        conditional=tuple(_exceeds(name, excess[name]) for name in unbounded),
        support=(
            *(
                at_most(f"largest output over the sum of values, {name}", excess[name], 1 + 1e-12)
                for name in ("sigmoid", "tanh")
            ),
            at_most("largest output over the sum of values, softmax", excess["softmax"], 1 + 1e-12),
            true("sigmoid outputs grow with the number of equal tokens", _equal_tokens(20) > 9 * _equal_tokens(2)),
        ),
        example="two tokens with value 1 each and scores 1000: raw scores give 2000, sigmoid "
        f"{2 * float(torch.sigmoid(torch.tensor(1000.0))):.0f}, softmax 1.",
    )


def _excess(activation: str, seed: int) -> float:
    """The largest output over the sum of the values' norms, over score scales, shapes and seeds."""
    found = []
    for layer, X in random_layers(seed, 3, activation):
        values = (X @ layer.W_V).norm(dim=-1).sum()
        # exp overflows beyond a factor of ten; it is far above the bound by then.
        for factor in (1, 10) if activation == "exp" else (1, 1e2, 1e4, 1e6):
            out = SelfAttention(factor * layer.W_Q, layer.W_K, layer.W_V, activation=activation)(X)
            found.append(float(out.norm(dim=-1).max() / values))
    return max(found)


def _exceeds(name: str, excess: float) -> Check:
    measured = f"{excess:.3g}"
    return Check(f"largest output over the sum of values, {named(name)}", measured, "at least 1000", excess >= 1000)


def _equal_tokens(count: int) -> float:
    ones = torch.ones(1, 1, dtype=torch.float64)
    layer = SelfAttention(ones, ones, ones, activation="sigmoid")
    return float(layer(torch.ones(count, 1, dtype=torch.float64)).max())
