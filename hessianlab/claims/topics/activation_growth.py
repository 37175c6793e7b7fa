"""Growth of the blocks with the tokens by attention activation, and peaked attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from hessianlab.claims.definition import claim, first_seed, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import (
    ACTIVATION_SHAPES,
    NOT_NORMALISED,
    block_norm,
    exponents,
    frozen,
    gap,
    largest,
    layer,
    named,
    smallest,
    value_functional_checks,
)
from hessianlab.claims.samples import Sample, listed, many_samples, normal, sample
from hessianlab.experiments.statistics import geometric_mean
from hessianlens.attention import SelfAttention, second_moment, third_moment
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss

SMALL = (1e-3, 1e-2)
LARGE = (3.0, 10.0)
WITHIN = 0.05
BLOCKS = ("QQ", "KK", "QK", "VQ", "VK", "VV")
SIXTH = dict.fromkeys(BLOCKS, 6)
OUTER = {"QQ": 6, "KK": 6, "QK": 6, "VQ": 4, "VK": 4, "VV": 2}
TABLES: dict[str, dict[str, tuple[int, ...]]] = {
    "outer": {block: (power,) for block, power in OUTER.items()},
    "functional": {"QQ": (5,), "KK": (5,), "QK": (3, 5), "VQ": (3,), "VK": (3,)},
}
"""Equation (5); the entries of the mixed functional block are of one kind or the other."""

WHERE = "3 shapes x 2 seeds"


def farthest(activation: str, part: str, powers: dict[str, int], scales: tuple[float, ...] = SMALL) -> float:
    """Largest distance of a block's exponent from the given power."""
    return largest(
        abs(e - p) for block, p in powers.items() for e in exponents(activation, part, block[0], block[1], scales)
    )


def _matches(activation: str, powers: dict[str, int], name: str) -> Check:
    return at_most(
        f"{named(activation)}: largest distance of an outer block's power from {name}, {WHERE}",
        farthest(activation, "outer", powers),
        WITHIN,
    )


def outer_powers(activation: str) -> str:
    """The measured powers of the outer product's QQ, VQ and VV blocks as text."""
    return ", ".join(
        f"{block} {listed([round(e, 2) for e in exponents(activation, 'outer', block[0], block[1], SMALL)])}"
        for block in ("QQ", "VQ", "VV")
    )


def _entry_share(part: str, powers: dict[str, tuple[int, ...]], scales: tuple[float, float]) -> tuple[int, int]:
    """How many of the non-zero entries of all blocks have one of their block's powers, and how many there are."""
    hits = total = 0
    for shape in ACTIVATION_SHAPES:
        small, large = (frozen("softmax", first_seed(), shape, s).part(part) for s in scales)
        for block, allowed in powers.items():
            first, second = (grid[block[0], block[1]].to_dense().flatten() for grid in (small, large))
            found = (second / first)[first != 0].abs().log() / math.log(scales[1] / scales[0])
            hits += int(torch.stack([(found - p).abs() < WITHIN for p in allowed]).any(0).sum())
            total += len(found)
    return hits, total


@claim("A7")
def powers_of_entries() -> Finding:
    """Entry by entry."""
    found = {
        (part, scales): _entry_share(part, powers, scales)
        for part, powers in TABLES.items()
        for scales in (SMALL, LARGE)
    }
    small, large = (
        tuple(
            share(
                f"{part} entries with the power of the table, tokens of scale {s[0]:g} to {s[1]:g}",
                *found[part, s],
                0.95,
            )
            for part in ("outer", "functional")
        )
        for s in (SMALL, LARGE)
    )
    value = block_norm(frozen("softmax", first_seed(), ACTIVATION_SHAPES[0], 1.0), "functional", "VV")
    hits, total = found["outer", LARGE]
    return Finding(
        checks=small + large,
        conditional=small,
        support=(
            at_most("share of outer entries with the power of the table, tokens of scale 3 to 10", hits / total, 0.5),
            at_most("norm of the functional value block, O(1) in the table", value, 0),
        ),
        example=f"tokens scaled from 3 to 10: {hits} of {total} entries of the outer product follow the table; from "
        f"0.001 to 0.01: {found['outer', SMALL][0]} of {total}.",
    )


@claim("A8")
def value_functional_zero() -> Finding:
    """The same measurement as P5."""
    return Finding(checks=value_functional_checks())


def _mixing_gap(activation: str) -> float:
    """Change of the outer blocks when the tokens are mixed by a rotation, which keeps X^T X."""
    gaps = []
    for shape in ACTIVATION_SHAPES:
        for seed in seeds(2):
            one, turn = sample(seed, *shape), torch.linalg.qr(normal(seed + 30, shape[0], shape[0])).Q
            before, after = (
                attention_hessian(layer(activation, seed, shape), X, grad=one.Y, curvature=1.0)
                for X in (one.X, turn @ one.X)
            )
            gaps += [gap(after.outer[r, c].to_dense(), before.outer[r, c].to_dense()) for r, c in map(tuple, BLOCKS)]
    return largest(gaps)


@claim("A11")
def linear_is_uniform() -> Finding:
    """Exponents, and equal covariances."""
    return Finding(
        checks=(
            _matches("linear", SIXTH, "6"),
            at_most("change of the outer blocks at equal covariance, linear", _mixing_gap("linear"), 1e-10),
            at_least("the same for softmax (a test of the test)", _mixing_gap("softmax"), 1e-3),
        )
    )


@claim("A12")
def without_normalisation() -> Finding:
    """Exponents for five activations."""
    checks = {a: _matches(a, SIXTH, "6") for a in NOT_NORMALISED}
    return Finding(
        checks=tuple(checks.values()),
        support=(
            *(_matches(a, OUTER, "softmax's, 6, 4 or 2") for a in ("sigmoid", "exp", "softmax")),
            *(checks[a] for a in ("linear", "relu", "tanh")),
        ),
        example="; ".join(f"{a}: {outer_powers(a)}" for a in ("linear", "sigmoid", "softmax")) + ".",
        curves=_curves(("softmax", "sigmoid", "linear")),
    )


def _curves(activations: tuple[str, ...]) -> Curves:
    scales = (1e-3, 1e-2, 1e-1, 1.0)
    drawn = {
        f"{named(a)}, {block}": (
            scales,
            tuple(block_norm(frozen(a, first_seed(), ACTIVATION_SHAPES[0], s), "outer", block) for s in scales),
        )
        for a in activations
        for block in ("QQ", "VV")
    }
    return Curves.log_log("scale of the tokens", "norm of the outer block", drawn)


@claim("A14")
def inside_and_outside() -> Finding:
    """Normalising and other activations."""
    spread = {a: _spread(a) for a in ("softmax", "relu_normalised", "sigmoid", "exp")}
    one = _one_feature()
    return Finding(
        checks=(
            at_least("spread of powers, softmax", spread["softmax"], 1),
            at_least(
                "spread of powers, ReLU / row sum: normalising, W_Q inside, W_V outside",
                spread["relu_normalised"],
                1,
            ),
            at_most("spread of powers, sigmoid: not normalising", spread["sigmoid"], 1),
        ),
        support=(
            at_most("spread of powers, ReLU / row sum", spread["relu_normalised"], WITHIN),
            at_least("spread of powers, sigmoid", spread["sigmoid"], 3.9),
            at_least("spread of powers, exp without normalisation", spread["exp"], 3.9),
            equal("rows of ReLU / row sum at scores (1, 3) and (0.01, 0.03)", one[0], one[1]),
        ),
        example="; ".join(f"{named(a)}: {outer_powers(a)}" for a in ("softmax", "relu_normalised", "sigmoid")) + ".",
        curves=_curves(("softmax", "sigmoid", "relu_normalised")),
    )


def _spread(activation: str) -> float:
    """The power of the query block less that of the value block, to the digits that the fit gives."""
    query, value = (exponents(activation, "outer", block[0], block[1], SMALL) for block in ("QQ", "VV"))
    return round(smallest(q - v for q, v in zip(query, value, strict=True)), 6) + 0.0


def _one_feature() -> tuple[str, str]:
    """Attention of a token to two others at scores (1, 3) and at scores a hundred times smaller."""
    one = torch.ones(1, 1, dtype=torch.float64)
    rows = []
    for scale in (1.0, 0.1):
        X = scale * torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        A = SelfAttention(one, one, one, activation="relu_normalised").attention(X)
        rows.append(", ".join(f"{a:.6g}" for a in A[0].tolist()))
    return rows[0], rows[1]


@dataclass(frozen=True)
class PeakedLayer:
    """A layer with its query weights multiplied: largest weight of a row on average, sizes of M_2, M_3, blocks."""

    weight: float
    second: float
    third: float
    query: float
    key: float


def _peaked(one: Sample, factor: float) -> PeakedLayer:
    w = {**one.weights, "Q": factor * one.weights["Q"]}
    layer = SelfAttention(*w.values())
    A, H = layer.attention(one.X), attention_hessian(layer, one.X, SquareLoss(one.Y))
    moments = (float(moment(A, one.X).norm()) for moment in (second_moment, third_moment))
    return PeakedLayer(float(A.amax(-1).mean()), *moments, *(block_norm(H, "full", 2 * n) for n in "QK"))


@claim("A23")
def peaked_attention() -> Finding:
    """Growing query weights, and one-hot attention."""
    factors = (1.0, 3.0, 10.0, 30.0)
    runs = {f: [_peaked(s, f) for s in many_samples()] for f in factors}
    means = {
        f: {k: geometric_mean([getattr(p, k) for p in runs[f]]) for k in ("weight", "second", "third", "query", "key")}
        for f in factors
    }
    first, last = means[1.0], means[30.0]
    one_hot = [_one_hot_curvature(seed) for seed in seeds(5)]
    limit = at_most("norm of the query-key part, exactly one-hot attention", one_hot, 1e-12)
    falling = (
        at_least("mean largest weight at W_Q times 30", last["weight"], 0.85),
        at_most("M_2 relative to the start", last["second"] / first["second"], 0.2),
        at_most("M_3 relative to the start", last["third"] / first["third"], 0.2),
        at_most("query block relative to the start", last["query"] / first["query"], 0.2),
    )
    return Finding(
        checks=(limit, *falling, at_most("key block relative to the start", last["key"] / first["key"], 0.2)),
        conditional=(limit, *falling),
        support=(
            at_least(
                "largest key block on the way, relative to the start",
                largest(m["key"] for m in means.values()) / first["key"],
                3,
            ),
        ),
        example="W_Q times "
        + "; ".join(
            f"{f:g}: largest weight {m['weight']:.2f}, query block {m['query']:.2g}, key block {m['key']:.2g}"
            for f, m in means.items()
        )
        + ".",
        curves=Curves.log_log(
            "factor on W_Q",
            "norm, geometric mean of 50 layers",
            {
                name: (factors, tuple(means[f][key] for f in factors))
                for name, key in (("M_2", "second"), ("M_3", "third"), ("H(Q,Q)", "query"), ("H(K,K)", "key"))
            },
        ),
    )


def _one_hot_curvature(seed: int) -> float:
    one = sample(seed, 6, 4, 3)
    only = torch.zeros(6, 6, dtype=torch.bool)
    only[torch.arange(6), torch.randint(6, (6,), generator=torch.Generator().manual_seed(seed))] = True
    H = attention_hessian(replace(one.layer, mask=only), one.X, SquareLoss(one.Y))
    return largest(block_norm(H, "full", r + c) for r in "QK" for c in "QK")
