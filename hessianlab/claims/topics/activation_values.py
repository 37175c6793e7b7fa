"""Softmax and sigmoid as maps: ranges, row sums, the sets they fill."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlab.claims.activations import SHAPES, layer
from hessianlab.claims.definition import claim, first_seed, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close, equal, share, true
from hessianlab.claims.quantities import largest, smallest
from hessianlab.claims.samples import listed, normal, sample
from hessianlens.layer import numerical_rank


def _scores(count: int) -> list[Tensor]:
    """Random score matrices, moderate in size."""
    return [3 * normal(seed, 6, 6) for seed in seeds(count)]


def _strictly_inside(A: Tensor) -> bool:
    return bool((A > 0).all() and (A < 1).all())


@claim("A1")
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
    causal = layer("softmax", first_seed(), SHAPES[0])
    first = float(_causal_weights(causal.W_Q, causal.W_K)[0, 0])
    return Finding(
        checks=(*several, true("softmax of a single score is strictly inside (0, 1)", 0 < single < 1)),
        conditional=several,
        support=(
            close("softmax of the single score -3.7", single, 1, 0),
            close("weight of the first token on itself under a causal mask", first, 1, 0),
        ),
        example=f"softmax([-3.7]) = [{single:g}]; under a causal mask the first row of A is [{first:g}, 0, ..., 0].",
    )


def _causal_weights(W_Q: Tensor, W_K: Tensor) -> Tensor:
    X = normal(first_seed() + 5, 4, W_Q.shape[0])
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


@claim("A2")
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
    worst = largest(left["softmax"])
    return Finding(
        checks=(
            at_most("largest distance of a softmax row sum from 1", (abs(s - 1) for s in sums["softmax"]), 1e-12),
            at_most("how far softmax outputs leave the range of the values (below 0: inside)", worst, 1e-12),
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


@claim("A3")
def simplex_and_cube() -> Finding:
    """Both maps reach every inner point of their set, and the sets have the right dimensions."""
    cube = [normal(seed, 5).sigmoid() for seed in seeds(20)]
    simplex = [p / p.sum() for p in cube]
    dimension = {
        "softmax": numerical_rank(torch.func.jacrev(lambda t: t.softmax(-1))(normal(first_seed() + 1, 5))),
        "sigmoid": numerical_rank(torch.func.jacrev(torch.sigmoid)(normal(first_seed() + 1, 5))),
    }
    smallest_weight = float(torch.tensor([700.0, 0.0, 0.0], dtype=torch.float64).softmax(-1)[1])
    ranks = {a: max(_score_rank(a, seed) for seed in seeds(10)) for a in ("softmax", "sigmoid")}
    return Finding(
        checks=(
            at_most(
                "largest distance of a softmax row sum from 1",
                (float((T.softmax(-1).sum(-1) - 1).abs().max()) for T in _scores(20)),
                1e-12,
            ),
            equal("dimension of the set of softmax rows, L = 5", dimension["softmax"], 4),
            at_most("points of the simplex: distance from softmax of their logs", _missed(simplex, _by_log), 1e-12),
            equal("dimension of the set of sigmoid rows, L = 5", dimension["sigmoid"], 5),
            at_most("points of the cube: distance from sigmoid of their log-odds", _missed(cube, _by_odds), 1e-12),
        ),
        support=(
            true("the smallest weight of softmax([700, 0, 0]) is above 0", smallest_weight > 0),
            *(
                equal(f"largest rank of the centred scores behind 8 x 8 {a} weights, d_K = 3", rank, 3)
                for a, rank in ranks.items()
            ),
        ),
        example=f"softmax([700, 0, 0]) has the smallest weight {smallest_weight:.0e}, not 0.",
    )


def _by_log(p: Tensor) -> Tensor:
    return p.log().softmax(-1)


def _by_odds(p: Tensor) -> Tensor:
    return torch.logit(p).sigmoid()


def _missed(points: list[Tensor], back: Callable[[Tensor], Tensor]) -> float:
    return largest(float((back(p) - p).abs().max()) for p in points)


def _score_rank(activation: str, seed: int) -> int:
    """Rank of the scores that attention weights tell: of softmax only up to a constant a row, so without row means."""
    A = layer(activation, seed, (8, 4, 3)).attention(sample(seed, 8, 4, 3).X)
    T = A.log() if activation == "softmax" else torch.logit(A)
    return numerical_rank(T - T.mean(-1, keepdim=True), tolerance=1e-10)
