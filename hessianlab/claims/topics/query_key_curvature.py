"""The query-key Hessian: its rank, and where negative curvature comes from."""

from __future__ import annotations

import torch

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, as_printed, at_least, at_most, equal, share
from hessianlab.claims.quantities import (
    EXACT,
    ROUNDING,
    both_signs,
    largest,
    merged,
    negatives,
    pair_gap,
    relative_minimum,
    smallest,
)
from hessianlab.claims.samples import Sample, described, first_sample, many_samples, numbers, sample
from hessianlens.attention import SingleMatrixAttention
from hessianlens.layer import attention_hessian, numerical_rank, t_outer_rank
from hessianlens.losses import SquareLoss

TOLERANCE = 1e-11
"""Eigenvalues below this share of the largest count as zero."""

SHAPES = ((6, 4, 1), (6, 4, 2), (6, 4, 4), (6, 4, 6), (4, 4, 2), (3, 4, 2), (5, 3, 2), (9, 8, 2), (9, 8, 4), (3, 6, 2))
LONG = ((9, 8, 4), (9, 8, 2), (10, 8, 1), (7, 6, 3), (7, 6, 2))
"""(L, d_V, d_K) with more tokens than features."""


def rank(one: Sample, part: str) -> int:
    """Number of non-zero eigenvalues of a query-key matrix."""
    return numerical_rank(one.query_key(part), TOLERANCE)


CURVED = 0.01
"""Share of the largest eigenvalue from which an optimiser may call a direction curved: ours, no document names one."""


def effective_share(one: Sample, part: str) -> float:
    """Share of the query-key directions whose eigenvalue is at least a hundredth of the largest in size."""
    sizes = torch.linalg.eigvalsh(one.query_key(part)).abs()
    return float((sizes >= CURVED * sizes.max()).double().mean())


PEAKED = 3.0
"""Scale of tokens whose attention is peaked: their scores are nine times as large."""


def effective_shares(part: str, token_scale: float) -> list[float]:
    """Of all shapes with more tokens than features, 5 seeds each."""
    return [effective_share(sample(s, *shape, token_scale=token_scale), part) for shape in LONG for s in seeds(5)]


def _spread(shares: list[float], peaked: list[float]) -> dict[str, float]:
    mean, other = (sum(found) / len(found) for found in (shares, peaked))
    return {"low": min(shares), "high": max(shares), "mean": mean, "peaked": other}


@measured
def bound_cases() -> tuple[tuple[tuple[int, int, int], int], ...]:
    """Shape and rank of the T-outer-product Hessian, 10 shapes x 10 seeds."""
    return tuple((shape, rank(sample(seed, *shape), "t_outer")) for shape in SHAPES for seed in seeds(10))


def bound_checks() -> tuple[Check, ...]:
    """No rank above the bound; the bound met where there are more tokens than features."""
    cases = bound_cases()
    above = sum(found > paper.lemma_d_2(s[1], s[2]) for s, found in cases)
    long = [(s, found) for s, found in cases if s[0] > s[1]]
    met = sum(found == paper.lemma_d_2(s[1], s[2]) for s, found in long)
    return (
        equal(f"instances of {len(cases)} whose rank exceeds the bound", above, 0),
        equal(f"instances of {len(long)} with L > d_V whose rank meets the bound", met, len(long)),
    )


@claim("P24")
def rank_bound() -> Finding:
    """The bound, and the exact rank beside it."""
    exact = sum(found == t_outer_rank(*shape) for shape, found in bound_cases())
    return Finding(
        checks=(
            *bound_checks(),
            equal(f"instances of {len(bound_cases())} with the exact rank", exact, len(bound_cases())),
        )
    )


@claim("B16")
def article_rank_bound() -> Finding:
    """The same measurement."""
    return Finding(checks=bound_checks())


@claim("B17")
def three_quarters() -> Finding:
    """Parameter space has 2 d_V d_K = d_V^2 directions here."""
    widths = [2**n for n in range(1, 11)]
    shares = [paper.lemma_d_2(d, d // 2) / (2 * d * (d // 2)) for d in widths]
    ratios = [paper.lemma_d_2(d, d // 2) / d**2 for d in widths]
    found = [rank(sample(seed, d + 1, d, d // 2), "t_outer") / (d * d) for d in (4, 6, 8) for seed in seeds(3)]
    return Finding(
        checks=(
            as_printed("bound over d_V^2, smallest and largest", [min(ratios), max(ratios)], ["0.75", "0.75"]),
            as_printed(
                "bound over the number of parameters, smallest and largest",
                [min(shares), max(shares)],
                ["0.75", "0.75"],
            ),
            at_most("measured rank over the number of parameters, largest", found, 0.75),
        )
    )


HEADS = (8, 12, 16, 32, 96)


@claim("B18")
def bound_with_heads() -> Finding:
    """A statement about the number d_V^2; what it means for directions is another claim."""
    bounds = {H: paper.lemma_d_2(64 * H, 64) for H in HEADS}
    return Finding(
        checks=(
            at_most(
                "bound over 2 d_V^2 / H, largest distance from 1",
                (abs(b / (2 * 64 * 64 * H) - 1) for H, b in bounds.items()),
                0.1,
            ),
            at_most("bound over d_V^2, largest", (b / (64 * H) ** 2 for H, b in bounds.items()), 0.25),
        )
    )


@claim("B19")
def share_of_flat_directions() -> Finding:
    """The bound is to be compared with the number of parameters, which shrinks with d_K as well."""
    found = {
        shape: [rank(sample(seed, *shape), "t_outer") / (2 * shape[1] * shape[2]) for seed in seeds(5)]
        for shape in LONG
    }
    flat = [round((1 - share) * 2 * s[1] * s[2]) == s[2] ** 2 for s, shares in found.items() for share in shares]
    short = [rank(sample(seed, 3, 8, 2), "t_outer") / 32 for seed in seeds(5)]
    effective, peaked = (effective_shares("t_outer", scale) for scale in (1.0, PEAKED))
    limit = {H: paper.lemma_d_2(64 * H, 64) / (2 * 64 * H * 64) for H in HEADS}
    return Finding(
        checks=tuple(
            at_most(
                f"share of curved directions, L = {s[0]}, d_V = {s[1]}, d_K = {s[2]}, smallest of 5", smallest(v), 0.5
            )
            for s, v in found.items()
        ),
        support=(
            equal("instances with exactly d_K^2 flat directions", sum(flat), len(flat)),
            at_least("share of curved directions, smallest", (v for row in found.values() for v in row), 0.7),
            at_least(
                f"bound over the number of parameters, H = {HEADS[0]} to {HEADS[-1]}, smallest", limit.values(), 0.9
            ),
            at_most("three tokens, d_V = 8, d_K = 2: share of curved directions, largest", short, 0.5),
        ),
        numbers=_spread(effective, peaked),
        example=f"d_V = 8, H = 4 (d_K = 2), 9 tokens: {rank(sample(first_seed(), 9, 8, 2), 't_outer')} of {2 * 8 * 2}"
        " directions are curved; the article compares with d_V^2 = 64.",
        curves=Curves(
            "heads H",
            "share of directions that are curved (bound)",
            {
                "of the 2 d_V d_K parameters": (tuple(map(float, HEADS)), tuple(limit.values())),
                "of d_V^2": (
                    tuple(map(float, HEADS)),
                    tuple(paper.lemma_d_2(64 * H, 64) / (64 * H) ** 2 for H in HEADS),
                ),
            },
            log_x=True,
        ),
    )


@claim("B20")
def sparse_curvature() -> Finding:
    """The T-functional term curves what the T-outer term leaves flat."""
    found = {shape: [rank(sample(seed, *shape), "full") for seed in seeds(5)] for shape in LONG}
    sizes = {shape: 2 * shape[1] * shape[2] for shape in LONG}
    outer = rank(sample(first_seed(), 9, 8, 4), "t_outer")
    shares, peaked = (effective_shares("full", scale) for scale in (1.0, PEAKED))
    return Finding(
        checks=tuple(
            at_most(
                f"share of curved directions, L = {s[0]}, d_V = {s[1]}, d_K = {s[2]}, smallest of 5",
                min(v) / sizes[s],
                0.5,
            )
            for s, v in found.items()
        ),
        support=(
            *(
                equal(f"rank at L = {s[0]}, d_V = {s[1]}, d_K = {s[2]}, smallest of 5", min(v), sizes[s])
                for s, v in found.items()
            ),
            at_least("share of directions above 1 % of the largest eigenvalue, mean", sum(shares) / len(shares), 0.5),
            at_most("the same with tokens three times as large, mean", sum(peaked) / len(peaked), 0.5),
        ),
        numbers=_spread(shares, peaked),
        example=f"L = 9, d_V = 8, d_K = 4: the T-outer-product part has rank {outer}, the query-key Hessian"
        f" {found[9, 8, 4][0]}, of {sizes[9, 8, 4]} directions.",
    )


@measured
def t_outer_minima() -> dict[str, list[float]]:
    """Relative smallest eigenvalue of the T-outer-product Hessian: softmax, at a perfect fit, and without softmax."""
    return {
        "softmax": [relative_minimum(s.query_key("t_outer")) for s in many_samples()],
        "zero residual": [relative_minimum(s.at_target.query_key("t_outer")) for s in many_samples()],
        "no softmax": [relative_minimum(s.linear.query_key("t_outer")) for s in many_samples()],
    }


def _example() -> Sample:
    """The first layer of two scalar tokens whose T-outer-product Hessian has a negative eigenvalue."""
    return first_sample((2, 1, 1), lambda s: relative_minimum(s.query_key("t_outer")) < -0.1)


@claim("B9")
def t_outer_sign() -> Finding:
    """U contains the softmax's second derivative weighted by the residual."""
    found, one = t_outer_minima(), _example()
    matrix = one.query_key("t_outer")
    return Finding(
        checks=(at_least("T-outer-product: smallest relative eigenvalue of 50", found["softmax"], ROUNDING),),
        support=(
            share("layers with a negative eigenvalue", negatives(found["softmax"]), 50, 0.9),
            at_least("zero residual: smallest relative eigenvalue of 50", found["zero residual"], ROUNDING),
            at_least("no softmax: smallest relative eigenvalue of 50", found["no softmax"], ROUNDING),
        ),
        example=f"{described(one)}: the"
        f" T-outer-product Hessian is {numbers(matrix)}, with eigenvalues {numbers(torch.linalg.eigvalsh(matrix))}.",
    )


@claim("B21")
def source_of_negative_curvature() -> Finding:
    """Both parts bring negative curvature."""
    without = [s.query_key("full") - s.query_key("t_functional") for s in many_samples()]
    pairs = [relative_minimum(s.query_key("t_functional")) for s in many_samples()]
    one = first_sample((3, 2, 1), lambda s: both_signs(s.query_key("t_outer"), 0.1))
    return Finding(
        checks=(
            at_least(
                "without the T-functional term: smallest relative eigenvalue of 50",
                map(relative_minimum, without),
                ROUNDING,
            ),
        ),
        support=(
            share("without it: layers with eigenvalues of both signs", sum(map(both_signs, without)), 50, 0.9),
            share("layers whose T-functional part has a negative eigenvalue", negatives(pairs), 50),
            at_least(
                "no softmax, without it: smallest relative eigenvalue of 50", t_outer_minima()["no softmax"], ROUNDING
            ),
        ),
        example=f"{described(one)}: without the T-functional"
        f" term the eigenvalues are {numbers(torch.linalg.eigvalsh(one.query_key('t_outer')))}.",
    )


@claim("B14")
def without_softmax() -> Finding:
    """Pairs without a softmax."""
    pairs = _linear_pair_checks()
    return Finding(checks=(*pairs, _at_a_fit("t_functional")), conditional=pairs, example=FITTED)


FITTED = "one token x = 1, all weights 1, target 1: F = 1, the residual is 0, and so is the T-functional Hessian."


def _at_a_fit(part: str) -> Check:
    """A statement without a condition is also about a residual of zero."""
    lows = [relative_minimum(s.linear.at_target.query_key(part)) for s in many_samples()[:10]]
    return share(
        f"linear attention, zero residual: {_PARTS[part]} with a negative eigenvalue", negatives(lows), len(lows)
    )


_PARTS = {"t_functional": "T-functional Hessians", "full": "query-key Hessians"}


def _linear_pair_checks() -> tuple[Check, ...]:
    linear = [s.linear.query_key("t_functional") for s in many_samples()]
    mirrors = largest(pair_gap(torch.linalg.eigvalsh(m)) for m in linear)
    return (
        share(
            "linear attention: T-functional Hessians with a negative eigenvalue",
            negatives([relative_minimum(m) for m in linear]),
            50,
        ),
        at_most("linear attention: spectrum minus its mirror image, largest", mirrors, EXACT),
    )


@claim("B24")
def belongs_to_the_parameterization() -> Finding:
    """Without softmax, two matrices are indefinite and one is not."""
    two = [relative_minimum(s.linear.query_key("full")) for s in many_samples()]
    one = [relative_minimum(_linear_single(s)) for s in many_samples()]
    found = (
        *_linear_pair_checks(),
        share("linear attention, two matrices: Hessians with a negative eigenvalue", negatives(two), 50),
        equal("linear attention, one matrix: Hessians with a negative eigenvalue", negatives(one), 0),
    )
    return Finding(checks=(*found, _at_a_fit("full")), conditional=found, example=FITTED)


def _linear_single(one: Sample) -> torch.Tensor:
    layer = SingleMatrixAttention(merged(one), one.weights["V"], activation="linear")
    return attention_hessian(layer, one.X, SquareLoss(one.Y)).full["QK", "QK"].to_dense()
