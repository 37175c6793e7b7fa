"""Attention moments in the blocks, and values of attention, under several activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, einsum

from hessianlab.claims.definition import claim, first_seed, seeds
from hessianlab.claims.finding import Check, Finding, at_least, at_most, close, equal, share, true
from hessianlab.claims.quantities import (
    ACTIVATION_SHAPES,
    EXACT,
    block_norm,
    drawn_samples,
    gap,
    largest,
    layer,
    smallest,
)
from hessianlab.claims.samples import (
    DenseHessians,
    Sample,
    attention_output,
    listed,
    mean_square,
    normal,
    sample,
    small_samples,
)
from hessianlab.wording import activation_in_words
from hessianlens.attention import second_moment, third_moment, third_moment_along
from hessianlens.attention.activations import Activation, RowNormalised, as_activation
from hessianlens.attention.activations.elementwise import Elementwise
from hessianlens.layer import numerical_rank

ELEMENTWISE = ("sigmoid", "tanh", "exp")


def outer_from(one: Sample, second: Tensor) -> Tensor:
    """H_o(Q,Q) from a second moment a row: ``c sum_i x_i x_i^T (x) S_i^T S_i``, ``S_i = W_V^T M_i W_K / s``."""
    S = einsum("av,iab,bk->ivk", one.weights["V"], second, one.weights["K"]) / one.setting.scale
    n = one.weights["Q"].numel()
    return one.setting.loss_factor * einsum("ia,ivb,ivc,id->abdc", one.X, S, S, one.X).reshape(n, n)


def functional_from(one: Sample, third: Tensor) -> Tensor:
    """H_f(Q,Q) from a third moment a row, already contracted with W_V times the loss gradient."""
    middle = einsum("ak,iab,bl->ikl", one.weights["K"], third, one.weights["K"]) / one.setting.scale**2
    n = one.weights["Q"].numel()
    return einsum("ia,ibc,id->abdc", one.X, middle, one.X).reshape(n, n)


def value_from(one: Sample, first: Tensor) -> Tensor:
    """H_o(V,V) from the first moment: ``c M_1^T M_1 (x) I``."""
    return one.setting.loss_factor * torch.kron(
        first.T @ first, torch.eye(one.weights["V"].shape[1], dtype=one.X.dtype)
    )


def direction(one: Sample, output: Tensor) -> Tensor:
    """``W_V g_i`` for every row."""
    return one.setting.loss_factor * (output - one.Y) @ one.weights["V"].T


@claim("A21")
def first_moment_is_the_context() -> Finding:
    """Output and value block from M_1."""
    outputs, blocks = [], []
    for s in small_samples():
        M_1 = s.setting.A @ s.X
        outputs.append(gap(M_1 @ s.weights["V"], s.layer(s.X)))
        blocks.append(gap(value_from(s, M_1), s.by_autograd.block("full", "V", "V")))
    return Finding(
        checks=(
            at_most("largest distance of M_1 W_V from the output", outputs, EXACT),
            at_most("largest distance of the value block from its form in M_1", blocks, EXACT),
        )
    )


def _uniform_pair(seed: int) -> Sample:
    """Two tokens, W_Q = 0: uniform attention over two tokens has a second central moment but no third."""
    one = sample(seed, 2, 3, 2)
    return Sample(one.X, one.Y, {**one.weights, "Q": torch.zeros_like(one.weights["Q"])})


@claim("A22")
def stratified() -> Finding:
    """Blocks from moments, and a case without third moment."""
    firsts, seconds, thirds = [], [], []
    for s in drawn_samples():
        A = s.setting.A
        firsts.append(gap(value_from(s, A @ s.X), s.by_autograd.block("outer", "V", "V")))
        seconds.append(gap(outer_from(s, second_moment(A, s.X)), s.by_autograd.block("outer", "Q", "Q")))
        along = third_moment_along(A, s.X, direction(s, s.layer(s.X)))
        thirds.append(gap(functional_from(s, along), s.by_autograd.block("functional", "Q", "Q")))
    pairs = [_uniform_pair(seed) for seed in seeds(5)]
    third = largest(float(third_moment(p.setting.A, p.X).norm()) for p in pairs)
    diagonal = largest(block_norm(p.hessian, "functional", "QQ") for p in pairs)
    mixed = [block_norm(p.hessian, "functional", "QK") for p in pairs]
    rebuilt = (
        at_most("outer VV from M_1, largest distance", firsts, EXACT),
        at_most("outer QQ from M_2, largest distance", seconds, EXACT),
        at_most("functional QQ from M_3, largest distance", thirds, EXACT),
        at_most("functional QQ where M_3 = 0", diagonal, 1e-12),
    )
    return Finding(
        checks=(*rebuilt, at_most("functional QK where M_3 = 0", mixed, 1e-12)),
        conditional=rebuilt,
        support=(
            at_most("norm of M_3 in these cases", third, 1e-12),
            at_least(
                "smallest norm of M_2 in these cases",
                (float(second_moment(p.setting.A, p.X).norm()) for p in pairs),
                1e-3,
            ),
            at_least("smallest norm of functional QK in these cases", mixed, 1e-4),
        ),
        example=f"two tokens, W_Q = 0, seed {first_seed()}: |M_3| = {third:.1g}, |H_f(Q,Q)| = {diagonal:.1g}, but "
        f"|H_f(Q,K)| = {mixed[0]:.2g}.",
    )


def _raw_moments(one: Sample, activation: str) -> tuple[float, float]:
    """Distance of the query blocks from their form in raw moments with weights a' and a''."""
    a = as_activation(activation)
    assert isinstance(a, Elementwise)
    T = one.setting.T
    value, slope, bend = a.derivatives(T)
    assert bend is not None
    by_autograd = DenseHessians(
        lambda w: attention_output(one.X, w, lambda t: a.derivatives(t)[0]), one.weights, mean_square(one.Y)
    )
    F = value @ one.X @ one.weights["V"]
    second = einsum("il,la,lb->iab", slope, one.X, one.X)
    third = einsum("il,il,la,lb->iab", bend, direction(one, F) @ one.X.T, one.X, one.X)
    outer = gap(outer_from(one, second), by_autograd.block("outer", "Q", "Q"))
    return outer, gap(functional_from(one, third), by_autograd.block("functional", "Q", "Q"))


@claim("A24")
def elementwise_analogue() -> Finding:
    """Blocks from weighted raw moments."""
    gaps = {a: [_raw_moments(s, a) for s in small_samples()] for a in ELEMENTWISE}
    outer, functional = ({a: largest(g[k] for g in found) for a, found in gaps.items()} for k in (0, 1))
    T, x = torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)
    slopes = T.sigmoid() * (1 - T.sigmoid())
    return Finding(
        checks=tuple(
            at_least(f"{a}: distance of the outer query block from a moment form", outer[a], 0.01) for a in ELEMENTWISE
        ),
        support=(
            *(
                at_most(f"{a}: outer query block from the second moment with weights a'", outer[a], EXACT)
                for a in ELEMENTWISE
            ),
            *(
                at_most(f"{a}: functional query block from the third moment with weights a''", functional[a], EXACT)
                for a in ELEMENTWISE
            ),
        ),
        example=f"sigmoid, scores (0, 1), tokens (1, 2): the second moment is {slopes[0]:.3f} * 1 + {slopes[1]:.3f} * "
        f"4 = {float(slopes @ x**2):.3f}; largest distance of the rebuilt blocks from torch "
        f"{max(*outer.values(), *functional.values()):.0e}.",
    )


def _central(activation: Activation) -> list[float]:
    """Distances of ``X^T J_i X`` from the second central moment of the rows of A."""
    gaps = []
    for seed in seeds(5):
        X, T = normal(seed, 6, 3), normal(seed + 20, 1, 6, 6)
        visible = torch.ones(1, 6, 6, dtype=torch.bool)
        A = activation.value(T, visible)[0]
        slopes = activation.jacobian(T, visible).apply(X[None, None])[0]
        gaps.append(gap(einsum("la,ilb->iab", X, slopes), second_moment(A, X)))
    return gaps


@claim("A25")
def because_of_normalisation() -> Finding:
    """Central moments under several activations."""
    plain = {a: _central(as_activation(a)) for a in ("softmax", "sigmoid", "linear", "exp")}
    normalised = {a: _central(RowNormalised(_elementwise(a))) for a in ("sigmoid", "relu")}
    exponential = _central(RowNormalised(_elementwise("exp")))
    agrees = at_most("softmax: distance from the central moment", plain["softmax"], EXACT)
    return Finding(
        checks=(
            agrees,
            *(at_least(f"{a}: distance from the central moment", plain[a], 0.01) for a in ("sigmoid", "linear", "exp")),
            *(_enough_matrices(a, distances) for a, distances in normalised.items()),
        ),
        support=(
            agrees,
            at_most("exp / row sum, which is softmax", exponential, EXACT),
            *(
                at_least(f"{activation_in_words(a)} / row sum: distance from the central moment", d, 0.01)
                for a, d in normalised.items()
            ),
        ),
        example="relative distance of X^T J X from the central moment: "
        + ", ".join(f"{a} {largest(d):.1g}" for a, d in plain.items())
        + ", "
        + ", ".join(f"{activation_in_words(a)} / row sum {smallest(d):.2g}" for a, d in normalised.items())
        + ".",
    )


def _enough_matrices(name: str, distances: list[float]) -> Check:
    return at_most(
        f"{activation_in_words(name)} / row sum (normalised): distance from the central moment", distances, EXACT
    )


def _elementwise(name: str) -> Elementwise:
    found = as_activation(name)
    assert isinstance(found, Elementwise)
    return found


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
    causal = layer("softmax", first_seed(), ACTIVATION_SHAPES[0])
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
        for shape in ACTIVATION_SHAPES:
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
            for shape in ACTIVATION_SHAPES
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
