"""One query-key matrix or two: what they can express, what they share, and the Hessian of one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import (
    EXACT,
    ROUNDING,
    gap,
    merged,
    negatives,
    relative_minimum,
    same,
    single_matrices_by_autograd,
    single_matrix_by_autograd,
    smallest,
    t_functional_of_one_matrix,
)
from hessianlab.claims.samples import (
    Sample,
    described,
    first_sample,
    half_square,
    many_samples,
    normal,
    numbers,
    sample,
    small_samples,
)
from hessianlens.attention import SingleMatrixAttention
from hessianlens.layer import attention_hessian, numerical_rank
from hessianlens.losses import SquareLoss

WIDTHS = (1, 2, 3, 4, 5)
D_V = 4


@measured
def _unreachable() -> dict[int, list[float]]:
    """Distance of 20 random 4 x 4 matrices from the nearest product of rank d_K, by d_K."""
    draws = [normal(seed, D_V, D_V) for seed in seeds(20)]
    return {k: [_distance(W, k) for W in draws] for k in WIDTHS}


def _distance(W: Tensor, rank: int) -> float:
    values = torch.linalg.svdvals(W)
    return float(values[rank:].norm() / values.norm())


def _recovered(seed: int) -> float:
    """Whether attention weights give their matrix back: log A_ij - log A_il = x_i W (x_j - x_l), solved for W."""
    W, X = normal(seed, D_V, D_V), normal(seed + 30, 8, D_V)
    log_A = torch.log_softmax(X @ W @ X.T, -1)
    differences = X - X.mean(0)
    centred = log_A - log_A.mean(1, keepdim=True)
    found = torch.linalg.pinv(X) @ centred @ torch.linalg.pinv(differences).T
    return gap(found, W)


@claim("B1")
def expressiveness() -> Finding:
    """More if d_K < d_V; the same otherwise."""
    found = _unreachable()
    missed = {k: sum(d > EXACT for d in v) for k, v in found.items()}
    below = [k for k in WIDTHS if k < D_V]
    determined = at_most(
        "matrix recovered from attention weights, largest relative difference", map(_recovered, seeds(20)), 1e-8
    )
    shares = {
        k: share(f"single matrices that no pair with d_K = {k} can express, d_V = {D_V}", missed[k], 20) for k in WIDTHS
    }
    products = [numerical_rank(normal(s, D_V, k) @ normal(s + 9, k, D_V)) for s in seeds(5) for k in below]
    return Finding(
        checks=(determined, *shares.values()),
        conditional=(determined, *(shares[k] for k in below)),
        support=(
            *(
                equal(f"single matrices that no pair with d_K = {k} can express", missed[k], 0)
                for k in WIDTHS
                if k >= D_V
            ),
            at_most("largest rank of a product with d_K < d_V", max(products), D_V - 1),
        ),
        example=f"d_V = {D_V}: the nearest product to a random W_QK is at relative distance {found[2][0]:.2f} for d_K"
        f" = 2, {found[3][0]:.2f} for d_K = 3 and {found[4][0]:.2f} for d_K = 4.",
    )


@claim("B2")
def parameter_count() -> Finding:
    """Half of d_V is the limit."""
    pairs = [(d, k) for d in range(2, 129) for k in range(1, d)]
    fewer = [(d, k) for d, k in pairs if 2 * d * k < d * d]
    below_half = [(d, k) for d, k in pairs if 2 * k < d]
    return Finding(
        checks=(equal(f"pairs d_K < d_V of {len(pairs)} with fewer parameters", len(fewer), len(pairs)),),
        conditional=(
            equal("pairs d_K < d_V / 2 with fewer parameters", len(set(fewer) & set(below_half)), len(below_half)),
        ),
        support=(equal("pairs with d_V / 2 <= d_K < d_V and fewer parameters", sum(2 * k >= d for d, k in fewer), 0),),
        example=f"d_V = 4, d_K = 3: two matrices have {2 * 4 * 3} entries, one has {4 * 4}.",
    )


@claim("B22")
def factorisation() -> Finding:
    """By singular values."""
    gaps = []
    for k in WIDTHS:
        for r in range(min(k, D_V) + 1):
            for seed in seeds(5):
                W = normal(seed, D_V, r) @ normal(seed + 40, r, D_V)
                W_Q, W_K = _factors(W, k)
                gaps.append(gap(W_Q @ W_K.T / math.sqrt(k), W))
    beyond = smallest(d for k, v in _unreachable().items() if k < D_V for d in v)
    return Finding(
        checks=(
            at_most(
                f"product of the factors minus W_QK, {len(gaps)} matrices, largest relative difference", gaps, EXACT
            ),
            at_least("rank above d_K: smallest distance from a product", beyond, 1e-6),
        )
    )


def _factors(W: Tensor, d_k: int) -> tuple[Tensor, Tensor]:
    """W_Q and W_K of width d_k with W_Q W_K^T / sqrt(d_k) = W, for W of rank at most d_k."""
    left, values, right = torch.linalg.svd(W)
    keep = min(d_k, len(values))
    root = (math.sqrt(d_k) * values[:keep]).sqrt()
    pad = torch.zeros(len(W), d_k - keep, dtype=W.dtype)
    return torch.cat([left[:, :keep] * root, pad], 1), torch.cat([right[:keep].T * root, pad], 1)


@claim("B3")
def identical_predictions() -> Finding:
    """Same scores, same output."""
    gaps = [gap(SingleMatrixAttention(merged(s), s.weights["V"])(s.X), s.layer(s.X)) for s in small_samples()]
    return Finding(checks=(at_most("outputs, largest relative difference", gaps, EXACT),))


@claim("B4")
def gradients() -> Finding:
    """The same gradient by the chain rule, not the same step."""
    steps, along, rules = [], [], []
    for one, w in zip(small_samples(), single_matrices_by_autograd(), strict=True):
        G, two, k = w.weight_gradient["QK"], one.by_autograd.weight_gradient, math.sqrt(one.shape[2])
        q, key = one.weights["Q"], one.weights["K"]
        steps.append(gap((two["Q"] @ key.T + q @ two["K"].T) / k, G))
        dQ, dK = (normal(first_seed() + n, *q.shape) for n in (1, 2))
        change = (dQ @ key.T + q @ dK.T) / k
        along.append(abs(float((two["Q"] * dQ + two["K"] * dK).sum() / (G * change).sum()) - 1))
        rules += [gap(G @ key / k, two["Q"]), gap(G.T @ q / k, two["K"])]
    one = sample(first_seed(), 2, 1, 1)
    G, two = single_matrix_by_autograd(one).weight_gradient["QK"], one.by_autograd.weight_gradient
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
    for one, w in zip(small_samples(), single_matrices_by_autograd(), strict=True):
        q, key, k = one.weights["Q"], one.weights["K"], math.sqrt(one.shape[2])
        dQ, dK = (normal(first_seed() + n, *q.shape) for n in (1, 2))
        both = torch.cat([dQ.reshape(-1), dK.reshape(-1)])
        change = ((dQ @ key.T + q @ dK.T) / k).reshape(-1)
        two = both @ one.by_autograd.full[: len(both), : len(both)] @ both
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


@claim("P17")
def single_matrix_lemma() -> Finding:
    """Right up to the factor of the loss."""
    singles = [paper.merge_query_key(s.setting) for s in small_samples()]
    printed = [paper.lemma_4_1(single, printed=True) for single in singles]
    jacobian = same(
        "Equation (22)",
        (
            (paper.equation_22(m), w.jacobian[:, w.place("QK")])
            for m, w in zip(singles, single_matrices_by_autograd(), strict=True)
        ),
    )
    halves = [single_matrix_by_autograd(s, half_square).block("full", "QK", "QK") for s in small_samples()]
    one = sample(first_seed(), 3, 1, 1)
    tiny, exact = paper.merge_query_key(one.setting), single_matrix_by_autograd(one).block("full", "QK", "QK")
    return Finding(
        checks=(
            jacobian,
            same(
                "Lemma 4.1 as printed, mean square error",
                ((p, w.block("full", "QK", "QK")) for p, w in zip(printed, single_matrices_by_autograd(), strict=True)),
            ),
        ),
        conditional=(jacobian, same("Lemma 4.1 as printed, loss |F - Y|^2 / 2", zip(printed, halves, strict=True))),
        support=(
            same(
                "2/(L d_V) times the printed form, mean square error",
                (
                    (paper.lemma_4_1(m), w.block("full", "QK", "QK"))
                    for m, w in zip(singles, single_matrices_by_autograd(), strict=True)
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
    pairs = list(zip(small_samples(), single_matrices_by_autograd(), strict=True))
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
    for one, w in zip(small_samples(), single_matrices_by_autograd(), strict=True):
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
    outer = single_matrix_by_autograd(one).block("outer", "QK", "QK")
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
    return single_matrix_by_autograd(one).block("full", "QK", "QK")
