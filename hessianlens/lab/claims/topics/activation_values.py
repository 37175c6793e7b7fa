"""Softmax and sigmoid as maps: ranges, row sums, the sets they fill."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessianlens.lab.claims.activations import SHAPES, layer, listed
from hessianlens.lab.claims.check import at_least, at_most, close, equal, share, true
from hessianlens.lab.claims.claim import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.samples import largest, normal, sample, seeds, smallest
from hessianlens.theory import numerical_rank


def _scores(count: int) -> list[Tensor]:
    """Random score matrices, moderate in size."""
    return [3 * normal(seed, 6, 6) for seed in seeds(count)]


def _strictly_inside(A: Tensor) -> bool:
    return bool((A > 0).all() and (A < 1).all())


@claim(
    "A1",
    source="Two functions that look the same from a distance",
    statement="Sigmoid and softmax both map real numbers into the open interval (0, 1).",
    method="10 random 6 x 6 score matrices; rows with a single visible score, as the first row of every causal "
    "sequence has; float64",
)
def into_unit_interval() -> Finding:
    """Rows of six scores and of one."""
    several = (
        share(
            "score matrices with sigmoid strictly inside (0, 1)",
            sum(_strictly_inside(T.sigmoid()) for T in _scores(10)),
            10,
        ),
        share(
            "score matrices with softmax strictly inside, 6 scores a row",
            sum(_strictly_inside(T.softmax(-1)) for T in _scores(10)),
            10,
        ),
    )
    single = float(torch.tensor([-3.7], dtype=torch.float64).softmax(-1))
    causal = layer("softmax", 0, SHAPES[0])
    first = float(_causal_weights(causal.W_Q, causal.W_K)[0, 0])
    return Finding(
        checks=(*several, true("softmax of a single score is strictly inside (0, 1)", 0 < single < 1)),
        conditional=several,
        condition="softmax sees at least two scores in the row.",
        support=(
            close("softmax of the single score -3.7", single, 1, 0),
            close("weight of the first token on itself under a causal mask", first, 1, 0),
        ),
        correction="Softmax of a row with one entry is exactly 1, whatever the score. In causal attention this "
        "happens in every sequence: the first token sees only itself. (Hidden entries are exactly 0.) With two or "
        "more scores both maps stay strictly inside.",
        example=f"softmax([-3.7]) = [{single:g}]; under a causal mask the first row of A is [{first:g}, 0, ..., 0].",
    )


def _causal_weights(W_Q: Tensor, W_K: Tensor) -> Tensor:
    X = normal(5, 4, W_Q.shape[0])
    T = X @ W_Q @ W_K.T @ X.T
    return T.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -math.inf).softmax(-1)


def _outside_hull(activation: str) -> list[float]:
    """How far outputs leave the span of the values along random directions, in units of the span; 0 inside the hull."""
    found = []
    for seed in seeds(10):
        for shape in SHAPES:
            head, X = layer(activation, seed, shape), sample(seed, *shape).X
            V = X @ head.W_V
            directions = normal(seed + 40, 50, V.shape[1])
            values, outputs = V @ directions.T, head(X) @ directions.T
            low, high = values.amin(0), values.amax(0)
            excess = torch.maximum(outputs.amax(0) - high, low - outputs.amin(0)) / (high - low)
            found.append(float(excess.max()))
    return found


@claim(
    "A2",
    source="Two functions that look the same from a distance, Figure 1",
    statement="Softmax rows sum to one and its outputs are convex combinations of the values; sigmoid rows have sums "
    "that vary freely and no such property.",
    method="row sums of A, 10 seeds x 3 shapes; outputs against the range of the values along 50 random directions (a "
    "convex combination never leaves it)",
)
def convex_combinations() -> Finding:
    """Row sums and ranges of outputs."""
    sums = {
        a: [
            float(s)
            for seed in seeds(10)
            for shape in SHAPES
            for s in layer(a, seed, shape).attention(sample(seed, *shape).X).sum(-1)
        ]
        for a in ("softmax", "sigmoid")
    }
    left = {a: _outside_hull(a) for a in ("softmax", "sigmoid")}
    return Finding(
        checks=(
            at_most(
                "largest distance of a softmax row sum from 1", largest(abs(s - 1) for s in sums["softmax"]), 1e-12
            ),
            at_most("softmax outputs outside the range of the values", largest(left["softmax"]), 1e-12),
            at_least(
                f"spread of sigmoid row sums ({listed(sums['sigmoid'])})",
                largest(sums["sigmoid"]) - smallest(sums["sigmoid"]),
                0.5,
            ),
            share(
                "layers whose sigmoid outputs leave the range of the values",
                sum(x > 0 for x in left["sigmoid"]),
                len(left["sigmoid"]),
                0.9,
            ),
        )
    )


@claim(
    "A3",
    source="Normalization is load-bearing structure",
    statement="Softmax rows fill a simplex, a known compact manifold; sigmoid gives an unconstrained hypercube.",
    method="smallest weight of softmax([t, 0, 0]) as t grows, in exact logarithms; rank of the row Jacobians "
    "(dimension of the sets); rank of the log-odds of a sigmoid attention matrix, 10 seeds, L = 8, d_K = 3",
)
def simplex_and_cube() -> Finding:
    """Limits, dimensions and ranks."""
    logs = [float(torch.tensor([t, 0.0, 0.0], dtype=torch.float64).log_softmax(-1).min()) for t in (10.0, 100.0, 700.0)]
    dimension = {
        "softmax": numerical_rank(torch.func.jacrev(lambda t: t.softmax(-1))(normal(1, 5))),
        "sigmoid": numerical_rank(torch.func.jacrev(torch.sigmoid)(normal(1, 5))),
    }
    ranks = [_log_odds_rank(seed) for seed in seeds(10)]
    dimensions = (
        equal("dimension of the set of softmax rows, L = 5", dimension["softmax"], 4),
        equal("dimension of the set of sigmoid rows, L = 5", dimension["sigmoid"], 5),
    )
    return Finding(
        checks=(
            *dimensions,
            true(
                "the vertex (1, 0, 0), the limit of softmax([t, 0, 0]), is itself a softmax row", min(logs) == -math.inf
            ),
            equal("largest rank of sigmoid log-odds, L = 8, unconstrained", max(ranks), 8),
        ),
        conditional=dimensions,
        condition="one means the closure: softmax rows lie in the simplex, sigmoid rows in the cube, of these "
        "dimensions.",
        support=(
            true(
                "the smallest weight of softmax([t, 0, 0]) is positive at t = 10, 100, 700",
                all(v > -math.inf for v in logs),
            ),
            at_most("log of the smallest weight at t = 700", logs[-1], -600),
            equal("largest rank of sigmoid log-odds, L = 8, d_K = 3", max(ranks), 3),
        ),
        correction="The simplex with its boundary is compact, but no softmax row lies on the boundary: what softmax "
        "fills is the open simplex, which is not closed. The cube that sigmoid fills is as bounded as the simplex, "
        "and it is not unconstrained as an attention matrix either: the log-odds are the scores, of rank d_K at most.",
        example=f"softmax([t, 0, 0]) tends to (1, 0, 0) but its smallest entry at t = 700 is e^{logs[-1]:.0f}, not 0; "
        f"an 8 x 8 sigmoid attention matrix with d_K = 3 has log-odds of rank {max(ranks)}.",
    )


def _log_odds_rank(seed: int) -> int:
    one = sample(seed, 8, 4, 3)
    A = layer("sigmoid", seed, (8, 4, 3)).attention(one.X)
    return numerical_rank(torch.logit(A), tolerance=1e-10)


CLAIMS = (into_unit_interval, convex_combinations, simplex_and_cube)
