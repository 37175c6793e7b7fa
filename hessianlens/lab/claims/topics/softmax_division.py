"""Dividing scores by their sum, in place of softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlens.lab.claims.check import as_printed, at_least, at_most, close, share, true
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.score_rows import (
    apart,
    by_row_sum,
    divided,
    dot_products,
    from_uniform,
    shown,
    softmax,
)

NEAR, FAR = (10, 9, 8), (100, 9, 8)
"""The article's scenarios A and B."""

KEYS = (4, 16, 64)
"""Lengths of the random rows."""


@claim(
    "C8",
    source="Brain teaser 1, first example",
    statement="Dividing 3, -2, 1 by their sum gives 1.5, -1.0, 0.5, so one weight is negative.",
    method="arithmetic",
)
def one_negative() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("scores over their sum", divided([3, -2, 1]), ["1.5", "-1.0", "0.5"]),))


@claim(
    "C9",
    source="Brain teaser 1, two scenarios",
    statement="Plain division turns 10, 9, 8 into 0.37, 0.33, 0.30 and 100, 9, 8 into 0.85, 0.08, 0.07.",
    method="arithmetic, rounded to the two digits printed",
)
def two_scenarios() -> Finding:
    """As printed."""
    return Finding(
        checks=(
            as_printed("10, 9, 8 over 27", divided(NEAR), [".37", ".33", ".30"]),
            as_printed("100, 9, 8 over 117", divided(FAR), [".85", ".08", ".07"]),
        )
    )


@claim(
    "C10",
    source="Brain teaser 1, below the scenarios",
    statement="Plain division makes these two scenarios look alike, while softmax tells them apart.",
    method="total variation distance between the two rows of weights (the share of weight that sits elsewhere), for "
    "plain division and for softmax; alike: closer than under softmax",
)
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
        correction=(
            f"Plain division moves {plain:.2f} of the weight between the scenarios, softmax only {soft:.2f}: the "
            "first tells them apart better, because softmax already gives two thirds to the first token of 10, 9, 8 "
            "(the row printed for it, 0.47, 0.33, 0.20, is not its softmax; C11). "
            "What plain division cannot see is a common factor (10, 9, 8 and 1000, 900, 800 look the same to it); "
            "what softmax cannot see is a common shift (10, 9, 8 and 110, 109, 108 look the same to it)."
        ),
        example=f"plain: {shown(divided(NEAR))} and {shown(divided(FAR))}; softmax: {shown(softmax(NEAR))} and "
        f"{shown(softmax(FAR))}.",
    )


def _rows(seed: int, keys: int) -> Tensor:
    """A thousand rows of scaled scores of random queries and keys."""
    return dot_products(seed + keys, 64, 1000, keys) / 8


@claim(
    "C26",
    source="Brain teaser 3, option 2",
    statement="Normalising raw scores by their row sum leaves negative weights.",
    method="scores of random queries and keys, d_K = 64, rows of 4, 16 and 64 keys, 1000 rows each; share of rows "
    "with a negative weight, at least 80 % each",
)
def negative_weights(seed: int = 0) -> Finding:
    """Nearly every row, with weights that may be very large."""
    checks = []
    for keys in KEYS:
        weights = by_row_sum(_rows(seed, keys))
        checks.append(share(f"rows of {keys} with a negative weight", int((weights < 0).any(-1).sum()), 1000, 0.8))
        if keys == KEYS[-1]:
            size = float(weights.abs().amax())
            checks.append(at_least("largest absolute weight, rows of 64: sums near zero blow weights up", size, 10))
    return Finding(checks=tuple(checks))


@claim(
    "C27",
    source="Brain teaser 3, option 2",
    statement="Patterns normalised by the row sum are all too uniform; they lack the emphasis of softmax.",
    method="distance from equal weights (half the sum of absolute differences), row sum against softmax, on the "
    "same scores: random queries and keys (d_K = 64, scaled; rows of 4, 16, 64; 1000 each), then scores that are "
    "all at least 1",
)
def too_uniform(seed: int = 0) -> Finding:
    """On scores of both signs it is the other way round."""
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
        condition="every score of the row is at least 1.",
        correction="With scores a > b of at least 1 the ratio of two weights is a/b under division and exp(a - b), "
        "which is larger, under softmax (C3). But scores of random queries and keys have both signs; their row sum is "
        "often near zero, and division by it gives weights far larger than 1 in size: less uniform than softmax, not "
        "more.",
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


CLAIMS = (one_negative, two_scenarios, look_alike, negative_weights, too_uniform)
