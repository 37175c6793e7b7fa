"""Where negative curvature in the query-key part comes from."""

from __future__ import annotations

import torch

from hessianlab.claims.definition import claim, measured
from hessianlab.claims.finding import Check, Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import EXACT, ROUNDING, largest, merged, negatives, pair_gap, relative_minimum
from hessianlab.claims.samples import Sample, described, first_sample, many_samples, numbers
from hessianlens.attention import SingleMatrixAttention
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss


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
    one = first_sample((3, 2, 1), lambda s: _mixed(s.query_key("t_outer"), 0.1))
    return Finding(
        checks=(
            at_least(
                "without the T-functional term: smallest relative eigenvalue of 50",
                map(relative_minimum, without),
                ROUNDING,
            ),
        ),
        support=(
            share("without it: layers with eigenvalues of both signs", sum(_mixed(m, 1e-10) for m in without), 50, 0.9),
            share("layers whose T-functional part has a negative eigenvalue", negatives(pairs), 50),
            at_least(
                "no softmax, without it: smallest relative eigenvalue of 50", t_outer_minima()["no softmax"], ROUNDING
            ),
        ),
        example=f"{described(one)}: without the T-functional"
        f" term the eigenvalues are {numbers(torch.linalg.eigvalsh(one.query_key('t_outer')))}.",
    )


def _mixed(matrix: torch.Tensor, share_of_largest: float) -> bool:
    """Whether there are eigenvalues of both signs above a share of the largest."""
    values = torch.linalg.eigvalsh(matrix)
    limit = share_of_largest * float(values.abs().max())
    return bool(values[0] < -limit) and bool(values[-1] > limit)


@claim("B14")
def without_softmax() -> Finding:
    """Pairs without a softmax."""
    return Finding(checks=_linear_pair_checks())


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
    return Finding(
        checks=(
            *_linear_pair_checks(),
            share("linear attention, two matrices: Hessians with a negative eigenvalue", negatives(two), 50),
            equal("linear attention, one matrix: Hessians with a negative eigenvalue", negatives(one), 0),
        )
    )


def _linear_single(one: Sample) -> torch.Tensor:
    layer = SingleMatrixAttention(merged(one), one.weights["V"], activation="linear")
    return attention_hessian(layer, one.X, SquareLoss(one.Y)).full["QK", "QK"].to_dense()
