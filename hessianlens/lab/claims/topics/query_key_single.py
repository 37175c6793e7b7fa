"""The Hessian of attention with one query-key matrix: its form and its sign."""

from __future__ import annotations

from torch import Tensor

from hessianlens.attention import SingleMatrixAttention
from hessianlens.lab.claims.check import Check, at_least, at_most, share
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.draws import seeds
from hessianlens.lab.claims.figures import gap, largest, relative_minimum, smallest
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.measures import merged, single_witness, single_witnesses, t_functional_of_one_matrix
from hessianlens.lab.claims.samples import EXACT, Sample, described, many_samples, sample, small_samples
from hessianlens.lab.claims.witness import half_square
from hessianlens.lab.claims.wording import numbers
from hessianlens.losses import SquareLoss
from hessianlens.theory import attention_hessian, paper

ROUNDING = -1e-10


@claim("P17")
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


@claim("P18")
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


@claim("B6")
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


@claim("B7")
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
        example=f"{described(one)}, W_QK = W_Q W_K: the Hessian of the single number W_QK is"
        f" {numbers(_scalar(one)[0, 0])} = {numbers(outer[0, 0])} + ({numbers((_scalar(one) - outer)[0, 0])}).",
    )


def _scalar(one: Sample) -> Tensor:
    return single_witness(one).block("full", "QK", "QK")
