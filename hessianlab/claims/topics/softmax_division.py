"""Dividing scores by their sum, in place of softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Finding, as_printed, at_least, at_most, close, share, true
from hessianlab.claims.samples import shown
from hessianlab.claims.score_rows import apart, by_row_sum, divided, dot_products, from_uniform, softmax

NEAR, FAR = (10, 9, 8), (100, 9, 8)
"""The article's scenarios A and B."""

KEYS = (4, 16, 64)
"""Lengths of the random rows."""


@claim("C8")
def one_negative() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("scores over their sum", divided([3, -2, 1]), ["1.5", "-1.0", "0.5"]),))


@claim("C9")
def two_scenarios() -> Finding:
    """As printed."""
    return Finding(
        checks=(
            as_printed("10, 9, 8 over 27", divided(NEAR), [".37", ".33", ".30"]),
            as_printed("100, 9, 8 over 117", divided(FAR), [".85", ".08", ".07"]),
        )
    )


@claim("C10")
def look_alike() -> Finding:
    """Plain division separates them more."""
    plain = apart(divided(NEAR), divided(FAR))
    soft = apart(softmax(NEAR), softmax(FAR))
    larger = tuple(100 * score for score in NEAR)
    return Finding(
        checks=(at_most("distance under plain division, against that under softmax", plain, round(soft, 3)),),
        support=(
            at_least("plain distance over softmax distance", plain / soft, 1.4),
            close(
                "distance of 10, 9, 8 from 1000, 900, 800 under plain division",
                apart(divided(NEAR), divided(larger)),
                0,
                1e-15,
            ),
            at_least("the same under softmax", apart(softmax(NEAR), softmax(larger)), 0.3),
            close(
                "distance of 10, 9, 8 from 110, 109, 108 under softmax",
                apart(softmax(NEAR), softmax([110, 109, 108])),
                0,
                1e-14,
            ),
        ),
        example=f"plain: {shown(divided(NEAR))} and {shown(divided(FAR))}; softmax: {shown(softmax(NEAR))} and "
        f"{shown(softmax(FAR))}.",
        told={"plain": plain, "soft": soft},
    )


def _rows(seed: int, keys: int) -> Tensor:
    """A thousand rows of scaled scores of random queries and keys."""
    return dot_products(seed + keys, 64, 1000, keys) / 8


@claim("C26")
def negative_weights() -> Finding:
    """Nearly every row, with weights that may be very large."""
    seed = first_seed()
    checks = []
    for keys in KEYS:
        weights = by_row_sum(_rows(seed, keys))
        checks.append(share(f"rows of {keys} with a negative weight", int((weights < 0).any(-1).sum()), 1000, 0.8))
        if keys == KEYS[-1]:
            size = float(weights.abs().amax())
            checks.append(at_least("largest absolute weight, rows of 64: sums near zero blow weights up", size, 10))
    return Finding(checks=tuple(checks))


@claim("C27")
def too_uniform() -> Finding:
    """On scores of both signs it is the other way round."""
    seed = first_seed()
    flatter, above = [], []
    for keys in KEYS:
        scores = _rows(seed, keys)
        flatter.append(share(f"rows of {keys} that are more uniform than under softmax", _more_uniform(scores), 1000))
        lifted = scores - scores.amin(-1, keepdim=True) + 1
        above.append(share(f"rows of {keys}, scores shifted to be at least 1", _more_uniform(lifted), 1000))
    plain = by_row_sum(_rows(seed, 16))
    return Finding(
        checks=tuple(flatter),
        conditional=tuple(above),
        support=(
            at_least("median distance from uniform by row sum, rows of 16", float(from_uniform(plain).median()), 1.0),
            at_most("largest such distance under softmax", float(from_uniform(_rows(seed, 16).softmax(-1)).max()), 1.0),
            true(
                "a softmax row is never further than 1 from uniform, a row sum may be",
                from_uniform(plain).max().item() > 1,
            ),
        ),
        example=f"scores 1, -0.9: row sum {shown(divided([1, -0.9]), 0)}, softmax {shown(softmax([1, -0.9]))}; "
        f"scores 10, 9, 8: row sum {shown(divided(NEAR))}, softmax {shown(softmax(NEAR))}.",
    )


def _more_uniform(scores: Tensor) -> int:
    return int((from_uniform(by_row_sum(scores)) < from_uniform(torch.softmax(scores, -1))).sum())
