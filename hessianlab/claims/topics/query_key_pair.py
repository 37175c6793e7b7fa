"""One query-key matrix beside two: what they share, and what they do not."""

from __future__ import annotations

import math

import torch

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Finding, at_least, at_most, equal
from hessianlab.claims.quantities import (
    EXACT,
    gap,
    merged,
    single_witness,
    single_witnesses,
    smallest,
    t_functional_of_one_matrix,
)
from hessianlab.claims.samples import described, normal, numbers, sample, small_samples
from hessianlens.attention import SingleMatrixAttention
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss


@claim("B3")
def identical_predictions() -> Finding:
    """Same scores, same output."""
    gaps = [gap(SingleMatrixAttention(merged(s), s.weights["V"])(s.X), s.layer(s.X)) for s in small_samples()]
    return Finding(checks=(at_most("outputs, largest relative difference", gaps, EXACT),))


@claim("B4")
def gradients() -> Finding:
    """The same gradient by the chain rule, not the same step."""
    steps, along, rules = [], [], []
    for one, w in zip(small_samples(), single_witnesses(), strict=True):
        G, two, k = w.weight_gradient["QK"], one.witness.weight_gradient, math.sqrt(one.shape[2])
        q, key = one.weights["Q"], one.weights["K"]
        steps.append(gap((two["Q"] @ key.T + q @ two["K"].T) / k, G))
        dQ, dK = (normal(first_seed() + n, *q.shape) for n in (1, 2))
        change = (dQ @ key.T + q @ dK.T) / k
        along.append(abs(float((two["Q"] * dQ + two["K"] * dK).sum() / (G * change).sum()) - 1))
        rules += [gap(G @ key / k, two["Q"]), gap(G.T @ q / k, two["K"])]
    one = sample(first_seed(), 2, 1, 1)
    G, two = single_witness(one).weight_gradient["QK"], one.witness.weight_gradient
    q, key = one.weights["Q"], one.weights["K"]
    return Finding(
        checks=(at_most("change of the product by a gradient step, largest relative difference", steps, 0.01),),
        conditional=(
            at_most("derivative along the same change of the product, largest relative difference", along, EXACT),
        ),
        support=(
            at_most("dl/dW_Q - G W_K / sqrt(d_K) and its twin, largest relative difference", rules, EXACT),
            at_least("change of the product by a gradient step, smallest relative difference", steps, 0.01),
        ),
        example=f"{described(one)}: G = {numbers(G[0, 0])},"
        f" dl/dW_Q = {numbers(two['Q'][0, 0])}, dl/dW_K = {numbers(two['K'][0, 0])}; one step of size eps changes the"
        f" product by {numbers(-(two['Q'] * key + q * two['K'])[0, 0])} eps against {numbers(-G[0, 0])} eps.",
    )


@claim("B5")
def hessians_differ() -> Finding:
    """They differ by the T-functional Hessian, and in size."""
    differences, explained, sizes = [], [], []
    for one, w in zip(small_samples(), single_witnesses(), strict=True):
        q, key, k = one.weights["Q"], one.weights["K"], math.sqrt(one.shape[2])
        dQ, dK = (normal(first_seed() + n, *q.shape) for n in (1, 2))
        both = torch.cat([dQ.reshape(-1), dK.reshape(-1)])
        change = ((dQ @ key.T + q @ dK.T) / k).reshape(-1)
        two = both @ one.witness.full[: len(both), : len(both)] @ both
        single = change @ w.block("full", "QK", "QK") @ change
        differences.append(abs(float((two - single) / single)))
        explained.append(gap(two - single, both @ one.query_key("t_functional") @ both))
        sizes.append(len(both) != len(change))
    return Finding(
        checks=(
            at_least("relative difference of the second derivatives, smallest", differences, 1e-3),
            at_most("that difference against the T-functional Hessian, largest", explained, 1e-9),
            at_least("samples whose Hessians have different sizes", sum(sizes), 1),
        )
    )


@claim("B11")
def no_t_functional_part() -> Finding:
    """The same measurement as for the paper's statement, beside the pair of matrices."""
    pair = smallest(float(s.query_key("t_functional").norm()) for s in small_samples())
    one = small_samples()[0]
    H = attention_hessian(SingleMatrixAttention(merged(one), one.weights["V"]), one.X, SquareLoss(one.Y))
    return Finding(
        checks=(
            at_most("one matrix: largest entry of the second derivative of T", t_functional_of_one_matrix(), 0.0),
            equal(
                "one matrix: norm of the library's T-functional block", float(H.t_functional[:].frobenius_norm()), 0.0
            ),
            at_least("two matrices: smallest norm of the T-functional Hessian", pair, 1e-6),
        )
    )
