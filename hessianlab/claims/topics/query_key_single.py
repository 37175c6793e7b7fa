"""The Hessian of attention with one query-key matrix: its form and its sign."""

from __future__ import annotations

from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Finding, at_least, at_most, share
from hessianlab.claims.quantities import (
    EXACT,
    ROUNDING,
    gap,
    merged,
    negatives,
    relative_minimum,
    same,
    single_witness,
    single_witnesses,
    t_functional_of_one_matrix,
)
from hessianlab.claims.samples import (
    Sample,
    described,
    first_sample,
    half_square,
    many_samples,
    numbers,
    sample,
    small_samples,
)
from hessianlens.attention import SingleMatrixAttention
from hessianlens.layer import attention_hessian
from hessianlens.losses import SquareLoss


@claim("P17")
def single_matrix_lemma() -> Finding:
    """Right up to the factor of the loss."""
    singles = [paper.merge_query_key(s.setting) for s in small_samples()]
    printed = [paper.lemma_4_1(single, printed=True) for single in singles]
    jacobian = same(
        "Equation (22)",
        (
            (paper.equation_22(m), w.jacobian[:, w.place("QK")])
            for m, w in zip(singles, single_witnesses(), strict=True)
        ),
    )
    halves = [single_witness(s, half_square).block("full", "QK", "QK") for s in small_samples()]
    one = sample(first_seed(), 3, 1, 1)
    tiny, exact = paper.merge_query_key(one.setting), single_witness(one).block("full", "QK", "QK")
    return Finding(
        checks=(
            jacobian,
            same(
                "Lemma 4.1 as printed, mean square error",
                ((p, w.block("full", "QK", "QK")) for p, w in zip(printed, single_witnesses(), strict=True)),
            ),
        ),
        conditional=(jacobian, same("Lemma 4.1 as printed, loss |F - Y|^2 / 2", zip(printed, halves, strict=True))),
        support=(
            same(
                "2/(L d_V) times the printed form, mean square error",
                (
                    (paper.lemma_4_1(m), w.block("full", "QK", "QK"))
                    for m, w in zip(singles, single_witnesses(), strict=True)
                ),
            ),
        ),
        example=f"{described(one)}: the printed form gives"
        f" {numbers(paper.lemma_4_1(tiny, printed=True)[0, 0])}, the Hessian is {numbers(exact[0, 0])}, the ratio"
        f" {float(exact[0, 0] / paper.lemma_4_1(tiny, printed=True)[0, 0]):.4f} = 2/(L d_V).",
    )


@claim("P18")
def single_matrix_is_u() -> Finding:
    """The scores are linear in one matrix, so that only U is left."""
    pairs = list(zip(small_samples(), single_witnesses(), strict=True))
    return Finding(
        checks=(
            same(
                "Lemma 4.1 minus U, both as printed",
                (
                    (paper.lemma_4_1(paper.merge_query_key(s.setting), printed=True), paper.remark_d_1_u(s.setting))
                    for s, _ in pairs
                ),
            ),
            same(
                "2/(L d_V) U minus the Hessian by autograd",
                (
                    (s.setting.loss_factor * paper.remark_d_1_u(s.setting), w.block("full", "QK", "QK"))
                    for s, w in pairs
                ),
            ),
            at_most("T-functional part of the single matrix, largest entry", t_functional_of_one_matrix(), 0.0),
        )
    )


@claim("B6")
def two_terms() -> Finding:
    """Two terms, and a Gram matrix first."""
    return Finding(
        checks=(
            _two_terms_check(),
            at_least("first term: smallest relative eigenvalue of 50", _minima("outer"), ROUNDING),
        )
    )


def _two_terms_check() -> Check:
    gaps = []
    for one, w in zip(small_samples(), single_witnesses(), strict=True):
        single = paper.merge_query_key(one.setting)
        terms = paper.lemma_4_1(single, "outer") + paper.lemma_4_1(single, "functional")
        gaps.append(gap(terms, w.block("full", "QK", "QK")))
    return at_most("Hessian minus the two terms, largest relative difference", gaps, EXACT)


def _minima(part: str, *, linear: bool = False, fitted: bool = False) -> list[float]:
    """Smallest over largest absolute eigenvalue of the single-matrix block, 50 layers."""
    found = []
    for one in many_samples():
        layer = SingleMatrixAttention(merged(one), one.weights["V"], activation="linear" if linear else "softmax")
        target = layer(one.X) if fitted else one.Y
        H = attention_hessian(layer, one.X, SquareLoss(target))
        found.append(relative_minimum(H.part(part)["QK", "QK"].to_dense()))
    return found


@claim("B7")
def single_matrix_sign() -> Finding:
    """Nothing is added to the two terms; the second of them is indefinite, with one matrix as with two."""
    second, whole = _minima("functional"), _minima("full")
    one = first_sample((2, 1, 1), lambda s: float(_scalar(s)) < 0)
    outer = single_witness(one).block("outer", "QK", "QK")
    return Finding(
        checks=(
            _two_terms_check(),
            at_most("second derivative of the scores by W_QK, largest entry", t_functional_of_one_matrix(), 0.0),
        ),
        support=(
            share("layers whose second term has a negative eigenvalue", negatives(second), 50, 0.9),
            share("layers whose Hessian has a negative eigenvalue", negatives(whole), 50, 0.9),
            at_least("zero residual: smallest relative eigenvalue of 50", _minima("full", fitted=True), ROUNDING),
            at_least("no softmax: smallest relative eigenvalue of 50", _minima("full", linear=True), ROUNDING),
        ),
        example=f"{described(one)}, W_QK = W_Q W_K: the Hessian of the single number W_QK is"
        f" {numbers(_scalar(one)[0, 0])} = {numbers(outer[0, 0])} + ({numbers((_scalar(one) - outer)[0, 0])}).",
    )


def _scalar(one: Sample) -> Tensor:
    return single_witness(one).block("full", "QK", "QK")
