"""What the sizes of blocks mean for a step: how large one per block may be, and what Adam makes of it."""

from __future__ import annotations

import torch

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close
from hessianlab.claims.quantities import block_norm, largest, slope, smallest
from hessianlab.claims.samples import Sample, sample

SHAPE = (6, 4, 3)
"""Tokens, width of the tokens, width of queries and keys."""

SCALES = (0.03, 0.1, 0.3, 1.0, 3.0)
"""Of the tokens; those up to 0.1 are small, as embeddings at initialisation are."""

_SMALL = tuple(scale for scale in SCALES if scale <= 0.1)


def bearable_step(one: Sample, block: str) -> float:
    """``2 / lambda_max``: the largest step of gradient descent along a block that is not amplified."""
    dense = one.hessian.full[block, block].to_dense()
    return 2 / float(torch.linalg.eigvalsh(dense)[-1])


@measured
def step_ratios() -> dict[float, list[float]]:
    """The largest step of the queries over that of the values, by scale of the tokens, over seeds."""
    found = {}
    for scale in SCALES:
        drawn = [sample(seed, *SHAPE, token_scale=scale) for seed in seeds(10)]
        found[scale] = [bearable_step(one, "Q") / bearable_step(one, "V") for one in drawn]
    return found


@claim("A36")
def steps_of_values_for_queries() -> Finding:
    """The smaller curvature allows the larger step."""
    found = step_ratios()
    return Finding(
        checks=tuple(
            at_most(
                f"largest step of queries over that of values, tokens of scale {scale:g}, largest", found[scale], 1.0
            )
            for scale in _SMALL
        ),
        support=(
            at_least(
                "the same ratio, tokens of scale up to 0.1, smallest", (r for s in _SMALL for r in found[s]), 10.0
            ),
        ),
        numbers={"ratio": smallest(found[0.1]), "large": largest(found[SCALES[-1]])},
        example="curvatures 0.01 (queries) and 1 (values): gradient descent diverges along the values above a step of "
        "2, along the queries above 200.",
        curves=Curves.log_log(
            "scale of the tokens",
            "largest step of queries over that of values",
            {f"seed {seed}": (SCALES, tuple(found[scale][k] for scale in SCALES)) for k, seed in enumerate(seeds(3))},
        ),
    )


@measured
def adam_and_curvature() -> dict[str, list[float]]:
    """Slopes of log(Adam's rate of queries over that of values) on log(curvature of values over that of queries).

    At its first step Adam divides a gradient by its size: the rate of a block is one over the root mean square of its
    gradient. A slope of one is a match.
    """
    slopes: dict[str, list[float]] = {"full": [], "outer": []}
    for seed in seeds(10):
        drawn = [sample(seed, *SHAPE, token_scale=scale) for scale in (0.003, 0.01, 0.03)]
        rates = [_gradient_size(one, "V") / _gradient_size(one, "Q") for one in drawn]
        for part, found in slopes.items():
            curvature = [block_norm(one.hessian, part, "VV") / block_norm(one.hessian, part, "QQ") for one in drawn]
            found.append(slope(curvature, rates))
    return slopes


def _gradient_size(one: Sample, block: str) -> float:
    weights = {name: weight.clone().requires_grad_() for name, weight in one.weights.items()}
    loss = one.by_autograd.loss_at(weights)
    (gradient,) = torch.autograd.grad(loss, weights[block])
    return float(gradient.square().mean().sqrt())


@claim("A37")
def adam_matches_the_curvature() -> Finding:
    """Gradients have half of the curvature's data factors, so Adam makes up for the square root, or two thirds."""
    found = adam_and_curvature()
    return Finding(
        checks=(
            close(
                "power of Adam's ratio of rates in the ratio of curvatures (full), farthest", found["full"], 1.0, 0.1
            ),
        ),
        support=(
            close("the same, full Hessian, farthest from 2/3", found["full"], 2 / 3, 0.05),
            close("the same, Gauss-Newton part, farthest from 1/2", found["outer"], 1 / 2, 0.05),
        ),
        numbers={"full": sum(found["full"]) / len(found["full"]), "outer": sum(found["outer"]) / len(found["outer"])},
        example="tokens of scale s: the gradient of the queries is of order s^3, that of the values of order s, and "
        "Adam's rates differ by s^-2; the curvatures are of order s^5 and s^2, and differ by s^-3: 2 of 3 orders of "
        "magnitude at s = 0.1.",
    )
