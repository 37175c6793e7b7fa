"""The Hessian of attention with one query-key matrix: its form and its sign."""

from __future__ import annotations

from torch import Tensor

from hessianlens.attention import SingleMatrixAttention
from hessianlens.lab.claims.check import Check, at_least, at_most, share
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.measures import merged, single_witness, single_witnesses, t_functional_of_one_matrix
from hessianlens.lab.claims.samples import (
    EXACT,
    Sample,
    described,
    gap,
    largest,
    many_samples,
    numbers,
    relative_minimum,
    sample,
    seeds,
    small_samples,
    smallest,
)
from hessianlens.lab.claims.witness import half_square
from hessianlens.losses import SquareLoss
from hessianlens.theory import attention_hessian, paper

ROUNDING = -1e-10
METHOD = "3 seeds x 4 shapes at W_QK = W_Q W_K^T / sqrt(d_K), float64, relative difference at most 1e-10"


@claim(
    "P17",
    source="Lemma 4.1, Equation (22)",
    statement="Jacobian and Hessian with respect to a single matrix W_QK, for the mean square error.",
    method="the printed forms against jacrev and torch.func.hessian, " + METHOD,
)
def single_matrix_lemma() -> Finding:
    """Right up to the factor of the loss."""
    singles = [paper.merge_query_key(s.setting) for s in small_samples()]
    printed = [paper.lemma_4_1(single, printed=True) for single in singles]
    jacobian = at_most(
        "Equation (22), largest relative difference",
        largest(
            gap(paper.equation_22(m), w.jacobian[:, w.place("QK")])
            for m, w in zip(singles, single_witnesses(), strict=True)
        ),
        EXACT,
    )
    halves = [single_witness(s, half_square).block("full", "QK", "QK") for s in small_samples()]
    one = sample(seeds(1)[0], 3, 1, 1)
    tiny, exact = paper.merge_query_key(one.setting), single_witness(one).block("full", "QK", "QK")
    return Finding(
        checks=(
            jacobian,
            at_most(
                "Lemma 4.1 as printed, mean square error, largest relative difference",
                largest(gap(p, w.block("full", "QK", "QK")) for p, w in zip(printed, single_witnesses(), strict=True)),
                EXACT,
            ),
        ),
        conditional=(
            jacobian,
            at_most(
                "Lemma 4.1 as printed, loss |F - Y|^2 / 2, largest relative difference",
                largest(gap(p, h) for p, h in zip(printed, halves, strict=True)),
                EXACT,
            ),
        ),
        condition="the loss is |F - Y|^2 / 2",
        correction="Lemma 4.1 leaves out the factor 2/(L d_V) of the mean square error, which Theorems 3.1 and 3.2"
        " carry. With the paper's own loss the Hessian is 2/(L d_V) times the printed matrix.",
        support=(
            at_most(
                "2/(L d_V) times the printed form, mean square error, largest relative difference",
                largest(
                    gap(paper.lemma_4_1(m), w.block("full", "QK", "QK"))
                    for m, w in zip(singles, single_witnesses(), strict=True)
                ),
                EXACT,
            ),
        ),
        example=f"{described(one)}: the printed form gives"
        f" {numbers(paper.lemma_4_1(tiny, printed=True)[0, 0])}, the Hessian is {numbers(exact[0, 0])}, the ratio"
        f" {float(exact[0, 0] / paper.lemma_4_1(tiny, printed=True)[0, 0]):.4f} = 2/(L d_V).",
    )


@claim(
    "P18",
    source="Section 4.2, after Lemma 4.1",
    statement="The Hessian with respect to W_QK is the matrix U of Remark D.1; there is no counterpart of the"
    " T-functional Hessian.",
    method="Lemma 4.1 against U, both as printed, and 2/(L d_V) U against torch; second derivative of the scores by"
    " W_QK; " + METHOD,
)
def single_matrix_is_u() -> Finding:
    """The scores are linear in one matrix, so that only U is left."""
    pairs = list(zip(small_samples(), single_witnesses(), strict=True))
    return Finding(
        checks=(
            at_most(
                "Lemma 4.1 minus U, both as printed, largest relative difference",
                largest(
                    gap(paper.lemma_4_1(paper.merge_query_key(s.setting), printed=True), paper.remark_d_1_u(s.setting))
                    for s, _ in pairs
                ),
                EXACT,
            ),
            at_most(
                "2/(L d_V) U minus the Hessian by autograd, largest relative difference",
                largest(
                    gap(s.setting.loss_factor * paper.remark_d_1_u(s.setting), w.block("full", "QK", "QK"))
                    for s, w in pairs
                ),
                EXACT,
            ),
            at_most("T-functional part of the single matrix, largest entry", t_functional_of_one_matrix(), 0.0),
        )
    )


@claim(
    "B6",
    source="The single-matrix Hessian: what Lemma 4.1 says",
    statement="The single-matrix Hessian is an outer-product and a functional term and nothing else; the first is"
    " always positive semi-definite.",
    method="Hessian by torch minus the two terms of Lemma 4.1 (with the factor of the loss), 3 seeds x 4 shapes;"
    " smallest eigenvalue of the first over the largest, 50 layers",
)
def two_terms() -> Finding:
    """Two terms, and a Gram matrix first."""
    return Finding(
        checks=(
            _two_terms_check(),
            at_least("first term: smallest relative eigenvalue of 50", smallest(_minima("outer")), ROUNDING),
        )
    )


def _two_terms_check() -> Check:
    gaps = []
    for one, w in zip(small_samples(), single_witnesses(), strict=True):
        single = paper.merge_query_key(one.setting)
        terms = paper.lemma_4_1(single, "outer") + paper.lemma_4_1(single, "functional")
        gaps.append(gap(terms, w.block("full", "QK", "QK")))
    return at_most("Hessian minus the two terms, largest relative difference", largest(gaps), EXACT)


def _minima(part: str, *, linear: bool = False, fitted: bool = False) -> list[float]:
    """Smallest over largest absolute eigenvalue of the single-matrix block, 50 layers."""
    found = []
    for one in many_samples():
        layer = SingleMatrixAttention(merged(one), one.weights["V"], activation="linear" if linear else "softmax")
        target = layer(one.X) if fitted else one.Y
        H = attention_hessian(layer, one.X, SquareLoss(target))
        found.append(relative_minimum(H.part(part)["QK", "QK"].to_dense()))
    return found


@claim(
    "B7",
    source="The single-matrix Hessian: what Lemma 4.1 says",
    statement="The two terms define the entire single-matrix Hessian; there is no additional indefinite structure.",
    method="Hessian by torch minus the two terms of Lemma 4.1, and the second derivative of the scores, which would add"
    " a third, 3 seeds x 4 shapes; for the remark, smallest eigenvalue over the largest absolute one, softmax, random"
    " targets, 50 layers (L = 6, d_V = 4); negative means below -1e-10",
)
def single_matrix_sign() -> Finding:
    """Nothing is added to the two terms; the second of them is indefinite, with one matrix as with two."""
    second, whole = _minima("functional"), _minima("full")
    one = next(s for s in (sample(seed, 2, 1, 1) for seed in seeds(100)) if float(_scalar(s)) < 0)
    outer = single_witness(one).block("outer", "QK", "QK")
    return Finding(
        checks=(
            _two_terms_check(),
            at_most("second derivative of the scores by W_QK, largest entry", t_functional_of_one_matrix(), 0.0),
        ),
        support=(
            share("layers whose second term has a negative eigenvalue", sum(v < ROUNDING for v in second), 50, 0.9),
            share("layers whose Hessian has a negative eigenvalue", sum(v < ROUNDING for v in whole), 50, 0.9),
            at_least(
                "zero residual: smallest relative eigenvalue of 50", smallest(_minima("full", fitted=True)), ROUNDING
            ),
            at_least(
                "no softmax: smallest relative eigenvalue of 50", smallest(_minima("full", linear=True)), ROUNDING
            ),
        ),
        correction="Nothing is added to the two terms, but the second of them, the softmax's second derivative weighted"
        " by the residual, is itself indefinite. So a single matrix does not make the Hessian positive semi-definite;"
        " it removes one source of negative curvature, the T-functional term. The other goes at a perfect fit, or"
        " without the softmax.",
        example=f"{described(one)}, W_QK = W_Q W_K: the Hessian of the single number W_QK is"
        f" {numbers(_scalar(one)[0, 0])} = {numbers(outer[0, 0])} + ({numbers((_scalar(one) - outer)[0, 0])}).",
    )


def _scalar(one: Sample) -> Tensor:
    return single_witness(one).block("full", "QK", "QK")


CLAIMS = (single_matrix_lemma, single_matrix_is_u, two_terms, single_matrix_sign)
