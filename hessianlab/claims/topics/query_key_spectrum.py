"""Eigenvalues of the query-key part, and its split at the scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import grad, hessian, jacrev

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, equal, share
from hessianlab.claims.quantities import EXACT, both_signs, flip_gap, gap, group_spread, largest, median, pair_gap, same
from hessianlab.claims.samples import (
    DenseHessians,
    Sample,
    Weights,
    described,
    half_square,
    many_samples,
    mean_square,
    normal,
    numbers,
    sample,
    small_samples,
    softmax_rows,
)

SIZES = ((6, 3, 2), (5, 2, 4), (4, 3, 3))
"""(L, d, hidden width) of two-layer MLPs."""


def _mlp_spectra(relu: bool) -> list[tuple[Tensor, int]]:
    """Eigenvalues of the functional Hessian of two-layer MLPs, and their hidden width."""
    found = []
    for L, d, width in SIZES:
        for seed in seeds(3):
            X, Y = normal(seed + 30, L, d), normal(seed + 40, L, d)
            weights = {"1": normal(seed, d, width), "2": normal(seed + 10, width, d)}

            def output(w: Weights, X: Tensor = X) -> Tensor:
                hidden = X @ w["1"]
                return (torch.relu(hidden) if relu else hidden) @ w["2"]

            found.append((torch.linalg.eigvalsh(DenseHessians(output, weights, mean_square(Y)).functional), width))
    return found


def mlp_checks(kind: str) -> tuple[Check, Check]:
    """Pairs and multiplicity of a two-layer MLP, "linear" or "ReLU"."""
    spectra = _mlp_spectra(kind == "ReLU")
    return (
        at_most(
            f"two-layer {kind} MLP: spectrum minus its mirror image, largest", (pair_gap(v) for v, _ in spectra), EXACT
        ),
        at_most(
            f"two-layer {kind} MLP: spread inside groups of the hidden width, largest",
            (group_spread(v, width) for v, width in spectra),
            EXACT,
        ),
    )


@claim("P21")
def like_a_two_layer_mlp() -> Finding:
    """The same with linear layers; ReLU keeps the pairs and loses the multiplicity."""
    linear, relu = mlp_checks("linear"), mlp_checks("ReLU")
    values = _small_relu_spectrum()
    return Finding(
        checks=(*linear, *relu),
        conditional=linear,
        support=(
            relu[0],
            at_least(
                "ReLU: largest spread inside groups", largest(group_spread(v, w) for v, w in _mlp_spectra(True)), 1e-3
            ),
        ),
        example="X = [[1], [-1]], two hidden units with W_1 = [1, -1], ReLU, F - Y = [1, 2]: the non-zero eigenvalues"
        f" are {numbers(values)}, two different pairs; a linear MLP with two hidden units has one pair, twice.",
    )


def _small_relu_spectrum() -> Tensor:
    X = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    weights = {"1": torch.tensor([[1.0, -1.0]], dtype=torch.float64), "2": torch.ones(2, 1, dtype=torch.float64)}
    target = torch.tensor([[0.0], [-1.0]], dtype=torch.float64)
    by_autograd = DenseHessians(lambda w: torch.relu(X @ w["1"]) @ w["2"], weights, mean_square(target))
    return torch.linalg.eigvalsh(by_autograd.functional)


@claim("B15")
def like_a_two_layer_linear_mlp() -> Finding:
    """Linear layers, as the article says."""
    return Finding(checks=mlp_checks("linear"))


@claim("B12")
def block_hollow_matrices() -> Finding:
    """True for two blocks and B not zero."""
    two = [s.query_key("t_functional") for s in many_samples()]
    three = [s.linear.hessian.functional[:].to_dense() for s in many_samples()]
    flips = [flip_gap(m) for m in two]
    pairs = at_most("two blocks: spectrum minus its mirror image, largest of 50", map(_mirror, two), EXACT)
    flipped = at_most("two blocks: residual of the flipped eigenvectors, largest of 50", flips, EXACT)
    signs = equal("two blocks: layers with both signs", sum(map(both_signs, two)), 50)
    fitted = [s.at_target.query_key("t_functional").abs().max() for s in many_samples()[:5]]
    small = torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]], dtype=torch.float64)
    return Finding(
        checks=(
            pairs,
            flipped,
            signs,
            at_most("three blocks: spectrum minus its mirror image, largest of 50", map(_mirror, three), EXACT),
        ),
        conditional=(pairs, flipped, signs),
        support=(
            at_least("three blocks: distance from the mirror image, largest of 50", largest(map(_mirror, three)), 0.01),
            equal("three blocks: layers with both signs", sum(map(both_signs, three)), 50),
            at_most("zero residual: largest entry of the T-functional Hessian", float(torch.stack(fitted).max()), 0.0),
        ),
        example=f"[[0, 1, 1], [1, 0, 1], [1, 1, 0]] has zero blocks on the diagonal and eigenvalues"
        f" {numbers(torch.linalg.eigvalsh(small))}.",
    )


def _mirror(matrix: Tensor) -> float:
    return pair_gap(torch.linalg.eigvalsh(matrix))


BULK = (0.1, 0.9)
SCALES = (0.1, 0.2, 1.0, 2.0)


@measured
def _bulk_distances() -> dict[float, list[tuple[float, float]]]:
    """Distance of the bulk of the query-key spectrum from those of the T-functional and T-outer parts, by scale."""
    found: dict[float, list[tuple[float, float]]] = {}
    for scale in SCALES:
        for shape in ((10, 6, 6), (10, 6, 2), (12, 8, 4)):
            for seed in seeds(5):
                one = sample(seed, *shape, token_scale=scale)
                whole, functional, outer = (_bulk(one.query_key(p)) for p in ("full", "t_functional", "t_outer"))
                size = whole.abs().sum()
                found.setdefault(scale, []).append(
                    (float((whole - functional).abs().sum() / size), float((whole - outer).abs().sum() / size))
                )
    return found


def _bulk(matrix: Tensor) -> Tensor:
    values = torch.linalg.eigvalsh(matrix)
    return values[int(BULK[0] * len(values)) : int(BULK[1] * len(values))]


@claim("P22")
def bulk_of_the_spectrum() -> Finding:
    """At small tokens the T-functional part is almost the whole spectrum; at large ones the T-outer part joins."""
    found = _bulk_distances()
    checks = {
        s: at_most(f"distance from the T-functional bulk, token scale {s:g}, largest of 15", (f for f, _ in v), 0.2)
        for s, v in found.items()
    }
    nearer = {s: sum(f < o for f, o in v) for s, v in found.items()}
    high = SCALES[-1]
    one = sample(first_seed(), 10, 6, 2, token_scale=high)
    bulks = {p: _bulk(one.query_key(p)) for p in ("full", "t_functional", "t_outer")}
    return Finding(
        checks=tuple(checks.values()),
        conditional=(checks[SCALES[0]], checks[SCALES[1]]),
        support=(
            at_least(
                f"distance from the T-functional bulk at scale {high:g}, median",
                median(f for f, _ in found[high]),
                0.25,
            ),
            at_least("of 15, nearer to the T-functional bulk at scale 0.1", nearer[SCALES[0]], 15),
        ),
        example=f"L = 10, d_V = 6, d_K = 2, tokens N(0, {high:g}^2): mean absolute eigenvalue of the bulk"
        f" {float(bulks['full'].abs().mean()):.3g}; of the T-functional part"
        f" {float(bulks['t_functional'].abs().mean()):.3g}, of the T-outer part"
        f" {float(bulks['t_outer'].abs().mean()):.3g}.",
        curves=Curves(
            "token scale",
            "median distance of the bulk",
            {
                "from the T-functional part": (SCALES, tuple(median(f for f, _ in v) for v in found.values())),
                "from the T-outer part": (SCALES, tuple(median(o for _, o in v) for v in found.values())),
            },
            log_x=True,
        ),
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
    matrix: Tensor = getattr(one.by_autograd, part)
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
    fitted = [float(one.at_target.query_key("t_functional").abs().max()) for one in many_samples()[:5]]
    return Finding(
        checks=(
            equal("samples with rank(B) d_K positive eigenvalues", sum(p == r for p, _, r in counts), len(counts)),
            equal("samples with rank(B) d_K negative eigenvalues", sum(n == r for _, n, r in counts), len(counts)),
            at_least(
                "samples in which B has not full rank",
                sum(r < s.shape[1] * s.shape[2] for (_, _, r), s in zip(counts, small_samples(), strict=True)),
                1,
            ),
        ),
        support=(at_most("zero residual: largest entry of the T-functional Hessian, and so of B", fitted, 0.0),),
    )


@claim("B26")
def independent_of_the_outputs() -> Finding:
    """The T-functional term is the gradient of the merged matrix, and so the residual, spread over two matrices."""
    distances, halves = [], []
    for one in many_samples()[:10]:
        other = replace(one, Y=one.Y + 1.0)
        half = replace(one, Y=(one.Y + one.layer(one.X)) / 2)
        here = one.query_key("t_functional")
        distances.append(float((other.query_key("t_functional") - here).norm() / here.norm()))
        halves.append(float((half.query_key("t_functional") - here / 2).norm() / here.norm()))
    return Finding(
        checks=(at_most("change of the T-functional Hessian with the targets, relative, largest", distances, EXACT),),
        support=(
            at_least("the same, smallest", distances, 0.05),
            at_most("half the residual against half of the T-functional Hessian, largest", halves, EXACT),
        ),
        example="the T-functional Hessian is [0, B; B^T, 0] with B the gradient of the loss with respect to W_Q W_K^T: "
        "half the residual is half of it, and at a perfect fit it is gone.",
    )
