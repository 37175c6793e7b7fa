"""The query-key Hessian split at the scores, and the eigenvalue pairs of its T-functional part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured
from hessianlab.claims.finding import Check, Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import EXACT, flip_gap, gap, group_spread, largest, pair_gap, same
from hessianlab.claims.samples import (
    Sample,
    described,
    half_square,
    mean_square,
    numbers,
    sample,
    small_samples,
    softmax_rows,
)

Loss = Callable[[Tensor], Callable[[Tensor], Tensor]]
MEAN_SQUARE, HALF_SQUARE = "mean square error", "|F - Y|^2 / 2"


def split_by_autograd(one: Sample, order: str = "QK", loss: Loss = mean_square) -> tuple[Tensor, Tensor]:
    """T-outer-product and T-functional Hessian by differentiating at the scores, in the given order of the weights."""
    weights = one.weights
    size, k = weights["Q"].numel(), math.sqrt(one.shape[2])

    def scores(flat: Tensor) -> Tensor:
        part = {n: p.reshape(weights["Q"].shape) for n, p in zip(order, flat.split(size), strict=True)}
        return one.X @ part["Q"] @ part["K"].T @ one.X.T / k

    def loss_of(T: Tensor) -> Tensor:
        return loss(one.Y)(softmax_rows(T) @ one.X @ weights["V"])

    flat = torch.cat([weights[n].reshape(-1) for n in order])
    T = scores(flat)
    J = jacrev(scores)(flat).reshape(T.numel(), -1)
    C = hessian(loss_of)(T).reshape(T.numel(), T.numel())
    return J.T @ C @ J, torch.einsum("ij,ijab->ab", grad(loss_of)(T), hessian(scores)(flat))


@measured
def _splits() -> tuple[tuple[Tensor, Tensor], ...]:
    return tuple(split_by_autograd(s) for s in small_samples())


def printed_split_finding(loss: str) -> Finding:
    """Remark D.1 as printed, under its condition, and corrected; shared by the paper and the article.

    Args:
        loss: The loss it is written for, "mean square error" or, if the document names none, "|F - Y|^2 / 2".
    """
    printed = [
        (paper.t_outer_product(s.setting, printed=True), paper.t_functional(s.setting, printed=True))
        for s in small_samples()
    ]
    halves = [split_by_autograd(s, "KQ", half_square) for s in small_samples()]
    corrected = [
        (paper.query_first(paper.t_outer_product(s.setting)), paper.query_first(paper.t_functional(s.setting)))
        for s in small_samples()
    ]
    written_for = mean_square if loss == MEAN_SQUARE else half_square
    as_written = [split_by_autograd(s, "QK", written_for) for s in small_samples()]
    one = sample(first_seed(), 3, 1, 1)
    tiny = paper.t_outer_product(one.setting, printed=True), split_by_autograd(one, "QK", written_for)[0]
    return Finding(
        checks=_pair_checks(f"order [W_Q; W_K], loss {loss}", printed, as_written),
        conditional=_pair_checks(f"order [W_K; W_Q], loss {HALF_SQUARE}", printed, halves),
        support=_pair_checks("blocks exchanged, times 2/(L d_V), loss mean square error", corrected, _splits()),
        example=f"{described(one)}, loss {loss}: V^T U V / d_K = {numbers(tiny[0])}; the T-outer-product Hessian in the"
        f" order [W_Q; W_K] is {numbers(tiny[1])}.",
    )


def _pair_checks(name: str, found: object, wanted: object) -> tuple[Check, Check]:
    pairs = list(zip(found, wanted, strict=True))  # type: ignore[call-overload]
    return (
        same(f"T-outer-product, {name}", ((f[0], w[0]) for f, w in pairs)),
        same(f"T-functional, {name}", ((f[1], w[1]) for f, w in pairs)),
    )


@claim("P19")
def nested_decomposition() -> Finding:
    """Right in the other order, up to the factor of the loss."""
    return printed_split_finding(MEAN_SQUARE)


@claim("B8")
def article_formulas() -> Finding:
    """The article carries the paper's order over."""
    return printed_split_finding(HALF_SQUARE)


@claim("B10")
def what_is_decomposed() -> Finding:
    """It is the full query-key Hessian that splits, not its outer product."""
    sums = [a + b for a, b in _splits()]
    parts = {p: [_query_key(s, p) for s in small_samples()] for p in ("outer", "full")}
    one = sample(first_seed(), 2, 1, 1)
    both = sum(split_by_autograd(one))
    return Finding(
        checks=(
            same("T-outer + T-functional minus the outer-product Hessian", zip(sums, parts["outer"], strict=True)),
        ),
        support=(
            same("T-outer + T-functional minus the full Hessian", zip(sums, parts["full"], strict=True)),
            at_most("T-functional against a part of F's functional Hessian", _inside_functional(), EXACT),
        ),
        example=f"{described(one)}: T-outer + T-functional ="
        f" {numbers(torch.as_tensor(both))}, full = {numbers(_query_key(one, 'full'))}, outer product ="
        f" {numbers(_query_key(one, 'outer'))}.",
    )


def _query_key(one: Sample, part: str) -> Tensor:
    size = 2 * one.weights["Q"].numel()
    matrix: Tensor = getattr(one.witness, part)
    return matrix[:size, :size]


def _inside_functional() -> float:
    """F's functional Hessian minus the T-functional Hessian must be the softmax part of the T-outer Hessian."""
    found = []
    for one, (t_outer, t_functional) in zip(small_samples(), _splits(), strict=True):
        softmax_part = t_outer - _query_key(one, "outer")
        found.append(gap(_query_key(one, "functional") - softmax_part, t_functional))
    return largest(found)


@claim("P20")
def eigenvalue_pairs() -> Finding:
    """Mirror image and multiplicity."""
    return Finding(checks=pair_checks())


def pair_checks() -> tuple[Check, ...]:
    """Pairs, multiplicity and the flipped eigenvector, on spectra from automatic differentiation."""
    spectra = [torch.linalg.eigvalsh(f) for _, f in _splits()]
    flips = [flip_gap(f) for _, f in _splits()]
    shapes = [s.shape for s in small_samples()]
    return (
        at_most("spectrum minus its mirror image, largest", (pair_gap(e) for e in spectra), EXACT),
        at_most(
            "spread inside groups of d_K, largest",
            (group_spread(e, s[2]) for e, s in zip(spectra, shapes, strict=True)),
            EXACT,
        ),
        share(
            "layers with 2 d_V d_K eigenvalues",
            sum(len(e) == 2 * s[1] * s[2] for e, s in zip(spectra, shapes, strict=True)),
            len(shapes),
        ),
        at_most("[-v_1; v_2] is an eigenvector of -lambda, largest residual", flips, EXACT),
    )


@claim("B13")
def number_of_pairs() -> Finding:
    """Exactly that many."""
    counts = []
    for one, (_, f) in zip(small_samples(), _splits(), strict=True):
        values = torch.linalg.eigvalsh(f)
        limit = 1e-10 * float(values.abs().max())
        half, k = len(values) // 2, one.shape[2]
        B = f[:half, half:][::k, ::k]
        counts.append((int((values > limit).sum()), int((values < -limit).sum()), int(torch.linalg.matrix_rank(B)) * k))
    return Finding(
        checks=(
            equal("samples with rank(B) d_K positive eigenvalues", sum(p == r for p, _, r in counts), len(counts)),
            equal("samples with rank(B) d_K negative eigenvalues", sum(n == r for _, n, r in counts), len(counts)),
            at_least(
                "samples in which B has not full rank",
                sum(r < s.shape[1] * s.shape[2] for (_, _, r), s in zip(counts, small_samples(), strict=True)),
                1,
            ),
        )
    )
