"""Attention without softmax: raw scores and positive parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import SHAPES, by_relu_sum, dot_products, row
from hessianlens.attention import SelfAttention


@claim("C24")
def raw_scores() -> Finding:
    """Half of them negative; cubic growth, to the ninth power in two layers."""
    seed = first_seed()
    negative, raw, twice, soft = [], [], [], []
    for n in range(5):
        for length, width, d_k in SHAPES:
            X = normal(seed + n, length, width)
            layer = SelfAttention.random(width, d_k, seed=seed + n, dtype=torch.float64, activation="linear")
            other = SelfAttention.random(width, d_k, seed=seed + n, dtype=torch.float64)
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
    shares = []
    for n in range(5):
        for length, width, d_k in SHAPES:
            layer = SelfAttention.random(width, d_k, seed=seed + n, dtype=torch.float64, activation="relu")
            shares.append(float((layer.attention(normal(seed + n, length, width)) == 0).double().mean()))
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
