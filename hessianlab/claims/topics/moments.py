"""Attention moments: their formulas, and what they say about attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close, equal, true
from hessianlab.claims.quantities import EXACT, block_norm, gap, median, query_key_norm, same, slope
from hessianlab.claims.samples import Sample, holding, normal, sample, small_samples
from hessianlab.paper import kron
from hessianlens.attention import SelfAttention, second_moment, third_moment
from hessianlens.layer import AttentionHessian, attention_hessian
from hessianlens.losses import SquareLoss


@claim("P8")
def second_moment_form() -> Finding:
    """Definition 3.1 and the first half of Remark 3.1."""
    moments, forms, sizes = [], [], []
    for one in small_samples():
        X, A, (L, d, _) = one.X, one.setting.A, one.shape
        M_2, M_3 = paper.moment_2(X, A), paper.moment_3(X, A)
        moments.append(gap(M_2.reshape(L, d, d), _by_sums(X, A, 2)))
        moments.append(gap(M_3.reshape(L, d, d, d), _by_sums(X, A, 3)))
        sizes.append((tuple(M_2.shape), tuple(M_3.shape)) == ((L * d, d), (L * d * d, d)))
        forms.append(gap(paper.z_1_from_moments(X, A), one.setting.Z_1))
    return Finding(
        checks=(
            at_most("moments against sums over tokens, largest relative difference", moments, EXACT),
            true("M_2 is L d_V x d_V and M_3 is L d_V^2 x d_V at every shape", all(sizes)),
            at_most("X * M_2 minus Z_1, largest relative difference", forms, EXACT),
        )
    )


def _by_sums(X: Tensor, A: Tensor, order: int) -> Tensor:
    """Central moments of the rows of A, one token after the other."""
    rows = []
    for weights in A:
        mean = sum((a * x for a, x in zip(weights, X, strict=True)), torch.zeros_like(X[0]))
        total = torch.zeros(*(order * (X.shape[1],)), dtype=X.dtype)
        for a, x in zip(weights, X, strict=True):
            c = x - mean
            power = torch.outer(c, c)
            total = total + a * (power if order == 2 else c[:, None, None] * power)
        rows.append(total)
    return torch.stack(rows)


@claim("P9")
def third_moment_form() -> Finding:
    """X^T cannot be cut into L block rows; the tokens as columns can."""
    formed = sum(_printed_form_exists(s) for s in small_samples())
    corrected = [paper.z_2_from_moments(s.X, s.setting.A) for s in small_samples()]
    pairs = list(zip(corrected, small_samples(), strict=True))
    one = small_samples()[0]
    L, d, _ = one.shape
    return Finding(
        checks=(
            equal(
                "samples at which the printed product exists and has the size of Z_2",
                f"{formed} of {len(pairs)}",
                f"{len(pairs)} of {len(pairs)}",
            ),
            equal(
                "size of the matrix that Z_2 needs there, against the printed L d_V^2 x d_V",
                tuple(one.setting.Z_2.shape),
                (L * d**2, d),
            ),
        ),
        support=(
            same("(I kron K kron I)(X * vec(X) * M_3) minus Z_2", ((found, s.setting.Z_2) for found, s in pairs)),
            true("that matrix is L d_V^3 x d_V^2 at every shape", all(_has_right_size(f, s) for f, s in pairs)),
        ),
        example=f"L = {L}, d_V = {d}: X has {L} rows, X^T has {d}, M_3 has {L * d * d} = {L} blocks of {d * d}. Z_2 is"
        f" {one.setting.Z_2.shape[0]} x {one.setting.Z_2.shape[1]}, the printed size is {L * d * d} x {d}.",
    )


def _printed_form_exists(one: Sample) -> bool:
    """Whether X * X^T * M_3 can be formed in L block rows, with as many rows as Z_2."""
    L = one.shape[0]
    try:
        pair = paper.khatri_rao(one.X, one.X.T, row_blocks=L)
        triple = paper.khatri_rao(pair, paper.moment_3(one.X, one.setting.A), row_blocks=L)
    except ValueError:
        return False
    return triple.shape == one.setting.Z_2.shape


def _has_right_size(found: Tensor, one: Sample) -> bool:
    L, d, _ = one.shape
    return tuple(found.shape) == (L * d**3, d**2)


@dataclass(frozen=True)
class MomentChange:
    """Relative changes when the attention weights move and some moments do not."""

    value_outer: float
    query_outer: float
    query_functional: float
    second: float
    third: float


@claim("P36")
def moments_by_block() -> Finding:
    """Rebuilding, and moving the attention weights along directions that keep some moments."""
    kept_two = [_moved(seed, kept=2) for seed in seeds(5)]
    kept_one = [_moved(seed, kept=1) for seed in seeds(5)]
    return Finding(
        checks=(
            *(
                at_most(
                    f"{name} rebuilt, largest relative difference", (_rebuilt(s)[name] for s in small_samples()), EXACT
                )
                for name in ("outer VV from M_1", "outer QQ from M_2", "outer QK from M_2", "functional QQ from M_3")
            ),
            at_most("M_1 kept: change of the value block", (c.value_outer for c in kept_one), 1e-9),
            at_least("M_1 kept, M_2 moved: change of outer QQ", (c.query_outer for c in kept_one), 1e-3),
            at_most("M_1, M_2 kept: change of outer QQ", (c.query_outer for c in kept_two), 1e-9),
            at_least("M_1, M_2 kept, M_3 moved: change of functional QQ", (c.query_functional for c in kept_two), 1e-3),
        )
    )


def _rebuilt(one: Sample) -> dict[str, float]:
    """Blocks from moments, with no attention matrix in them, against automatic differentiation."""
    s, w = one.setting, one.weights
    Z_1, Z_2 = paper.z_1_from_moments(one.X, s.A), paper.z_2_from_moments(one.X, s.A)
    eye = torch.eye(s.d_V, dtype=one.X.dtype)
    values = kron(torch.eye(s.L, dtype=one.X.dtype), w["V"] @ w["V"].T)
    Q, K = paper.score_factor(s, "Q"), paper.score_factor(s, "K")
    middle = s.loss_factor / s.scale**2 * Z_1.T @ values @ Z_1
    weighted = kron(
        s.delta.T @ kron(torch.eye(s.L, dtype=one.X.dtype), w["V"].T), torch.eye(s.d_V**2, dtype=one.X.dtype)
    )
    M_1 = paper.moment_1(one.X, s.A)
    return {
        "outer VV from M_1": gap(s.loss_factor * kron(M_1.T @ M_1, eye), one.by_autograd.block("outer", "V", "V")),
        "outer QQ from M_2": gap(Q.T @ middle @ Q, one.by_autograd.block("outer", "Q", "Q")),
        "outer QK from M_2": gap(Q.T @ middle @ K, one.by_autograd.block("outer", "Q", "K")),
        "functional QQ from M_3": gap(
            s.loss_factor / s.scale**2 * Q.T @ weighted @ Z_2 @ Q, one.by_autograd.block("functional", "Q", "Q")
        ),
    }


def _moved(seed: int, kept: int) -> MomentChange:
    """Move every attention row along a direction that changes neither its sum nor its first `kept` moments."""
    one = sample(seed, 8, 2, 2)
    X, A = one.X, torch.softmax(one.setting.T / one.setting.T.abs().max(), -1)
    features = [torch.ones(8, 1, dtype=X.dtype), X]
    if kept == 2:
        features.append(torch.stack([X[:, 0] ** 2, X[:, 0] * X[:, 1], X[:, 1] ** 2], 1))
    basis = torch.linalg.qr(torch.cat(features, 1))[0]
    push = normal(seed + 7, 8, 8)
    push = push - push @ basis @ basis.T
    step = 0.5 / (push.abs() / A).max()
    before, after = _blocks(one.layer, X, A), _blocks(one.layer, X, A + step * push)
    return MomentChange(*(gap(b, a) for a, b in zip(before, after, strict=True)))


def _blocks(layer: SelfAttention, X: Tensor, A: Tensor) -> tuple[Tensor, ...]:
    """VV outer, QQ outer, QQ functional, M_2 and M_3 at an attention matrix, loss derivatives held."""
    H = attention_hessian(holding(layer, X, A), X, grad=torch.ones_like(X), curvature=1.0)
    grids = (H.outer["V", "V"], H.outer["Q", "Q"], H.functional["Q", "Q"])
    return (*(g.to_dense() for g in grids), second_moment(A, X), third_moment(A, X))


WIDTHS = (16, 64, 256, 1024)


def _score_spread(seed: int, d_v: int, d_k: int, token_variance: float, divisor: float) -> float:
    """Standard deviation of the scores of 8 tokens, weights N(0, 0.64/d_V)."""
    X = math.sqrt(token_variance) * normal(seed, 8, d_v)
    W_Q, W_K = (math.sqrt(0.64 / d_v) * normal(seed + i, d_v, d_k) for i in (1, 2))
    return float((X @ W_Q @ W_K.T @ X.T / divisor).std())


def _spreads(kind: str) -> tuple[float, ...]:
    """Mean over 5 seeds at every width, for one way to let d_K grow."""
    cases = {
        "d_V = 16, tokens N(0, 1)": lambda k: (16, k, 1.0, math.sqrt(k)),
        "d_V = d_K, tokens N(0, 1)": lambda k: (k, k, 1.0, math.sqrt(k)),
        "d_V = d_K, tokens N(0, 0.64/d_V)": lambda k: (k, k, 0.64 / k, math.sqrt(k)),
        "d_V = 16, scores over d_K": lambda k: (16, k, 1.0, float(k)),
    }
    return tuple(sum(_score_spread(100 * s, *cases[kind](k)) for s in seeds(5)) / 5 for k in WIDTHS)


@claim("P37")
def uniform_attention_at_initialisation() -> Finding:
    """The divisor sqrt(d_K) cancels the growth of the inner product: the spread does not shrink with d_K alone."""
    fixed, square = "d_V = 16, tokens N(0, 1)", "d_V = d_K, tokens N(0, 1)"
    small, divided = "d_V = d_K, tokens N(0, 0.64/d_V)", "d_V = 16, scores over d_K"
    found = {kind: _spreads(kind) for kind in (fixed, square, small, divided)}
    powers = {kind: slope(WIDTHS, values) for kind, values in found.items()}
    return Finding(
        checks=tuple(at_most(f"power of d_K in the spread, {kind}", powers[kind], -0.4) for kind in (fixed, square)),
        conditional=(
            close(f"power of d_K in the spread, {small}", powers[small], -1, 0.1),
            close(f"power of d_K in the spread, {divided}", powers[divided], -0.5, 0.1),
        ),
        support=tuple(close(f"power of d_K in the spread, {k}", powers[k], 0, 0.1) for k in (fixed, square)),
        example=f"d_V = 16, tokens N(0, 1): the scores have standard deviation {found[fixed][0]:.2f} at d_K = 16 and"
        f" {found[fixed][-1]:.2f} at d_K = 1024; with d_V = d_K and embeddings N(0, 0.64/d_V) it falls from"
        f" {found[small][0]:.3f} to {found[small][-1]:.5f}.",
        curves=Curves.log_log(
            "d_K",
            "standard deviation of the scores",
            {kind: (tuple(map(float, WIDTHS)), values) for kind, values in found.items()},
        ),
    )


@claim("P38")
def similar_tokens() -> Finding:
    """Moments shrink with the spread of the tokens."""
    spreads = (1.0, 0.3, 0.1, 0.01, 0.001, 0.0001)
    runs = [[_at_spread(seed, eps) for eps in spreads] for seed in seeds(5)]
    totals = [[query_key_norm(H, "full") for H in run] for run in runs]
    wanted = {("outer", "QQ"): 4, ("functional", "QQ"): 3, ("t_functional", "QK"): 2}
    powers = {key: [slope(spreads[3:], [block_norm(H, *key) for H in run[3:]]) for run in runs] for key in wanted}
    values = [block_norm(run[-1], "outer", "VV") / block_norm(run[2], "outer", "VV") for run in runs]
    return Finding(
        checks=(
            at_most(
                "query-key norm over that at the next larger spread, largest",
                (b / a for run in totals for a, b in pairwise(run)),
                0.5,
            ),
            *(
                close(
                    f"power of eps in {part.replace('t_', 'T-')} {block}, farthest of 5 seeds",
                    p,
                    wanted[part, block],
                    0.1,
                )
                for (part, block), p in powers.items()
            ),
            at_least("value block at the smallest eps over that at 0.1, smallest", values, 0.5),
        ),
        curves=Curves.log_log(
            "spread of the tokens",
            "norm of the query-key part, uniform attention",
            {f"seed {s}": (spreads, tuple(run)) for s, run in zip(seeds(3), totals, strict=False)},
        ),
    )


def _at_spread(seed: int, eps: float) -> AttentionHessian:
    one = sample(seed, 6, 4, 3)
    X = normal(1000 * seed + 9, 1, 4) + eps * one.X
    uniform = torch.full((6, 6), 1 / 6, dtype=X.dtype)
    return attention_hessian(holding(one.layer, X, uniform), X, grad=one.Y / 12, curvature=1 / 12)


@claim("P39")
def one_hot_attention() -> Finding:
    """Exactly one-hot rows, and rows that become one-hot."""
    exact = [_one_hot(seed) for seed in seeds(10)]
    shares = (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
    runs = [[query_key_norm(_nearly_one_hot(seed, share), "full") for share in shares] for seed in seeds(10)]
    powers = [slope(shares[2:], run[2:]) for run in runs]
    return Finding(
        checks=(
            at_most("one-hot rows: largest entry of M_2 and M_3", (m for m, _, _ in exact), 1e-25),
            at_most("one-hot rows: largest norm of a query-key block", (q for _, q, _ in exact), 1e-25),
            at_least("one-hot rows: smallest norm of the value block", (v for _, _, v in exact), 1e-3),
            at_least("power of eps in the query-key norm, smallest of 10 seeds", powers, 0.95),
        ),
        curves=Curves.log_log(
            "share of uniform attention",
            "norm of the query-key part",
            {f"seed {s}": (shares, tuple(run)) for s, run in zip(seeds(3), runs, strict=False)},
        ),
    )


def _nearly_one_hot(seed: int, share: float) -> AttentionHessian:
    one = sample(seed, 6, 4, 3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    return _held(one, (1 - share) * torch.eye(6, dtype=one.X.dtype)[order] + share / 6)


def _one_hot(seed: int) -> tuple[float, float, float]:
    one = sample(seed, 6, 4, 3)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[torch.arange(6), order] = True
    H = attention_hessian(replace(one.layer, mask=mask), one.X, SquareLoss(one.Y))
    A = H.heads[0].weights[0]
    moments = max(float(second_moment(A, one.X).abs().max()), float(third_moment(A, one.X).abs().max()))
    return moments, query_key_norm(H, "full"), block_norm(H, "full", "VV")


@claim("P40")
def dispersed_attention() -> Finding:
    """Dispersion helps the outer part, but the size of the tokens decides."""
    ratios = _dispersion_ratios()
    scales = tuple(ratios)
    low, high = scales[0], scales[-1]
    gain = [_gain(seed, high) for seed in seeds(6)]
    one = _uniform(first_seed(), low)
    return Finding(
        checks=tuple(at_least(f"outer over functional, token scale {s:g}, smallest", r, 1) for s, r in ratios.items()),
        conditional=(at_least(f"outer over functional, token scale {high:g}, smallest of 6 seeds", ratios[high], 1),),
        support=(
            at_most(f"outer over functional, token scale {low:g}, largest", ratios[low], 1),
            at_least(f"ratio at uniform over ratio at peaked attention, token scale {high:g}, median", median(gain), 1),
        ),
        example=f"L = 16, d_V = d_K = 4, uniform attention, tokens N(0, {low:g}^2): the query-key outer part has norm"
        f" {query_key_norm(one, 'outer'):.2g}, the functional part {query_key_norm(one, 'functional'):.2g}.",
        curves=Curves.log_log(
            "token scale",
            "outer over functional norm, query-key part, uniform attention",
            {f"seed {s}": (scales, tuple(r[i] for r in ratios.values())) for i, s in enumerate(seeds(5))},
        ),
    )


@measured
def _dispersion_ratios() -> dict[float, list[float]]:
    return {scale: [_ratio(_uniform(seed, scale)) for seed in seeds(6)] for scale in (0.1, 0.3, 1.0, 3.0, 10.0)}


def _ratio(H: AttentionHessian) -> float:
    return query_key_norm(H, "outer") / query_key_norm(H, "functional")


def _uniform(seed: int, scale: float) -> AttentionHessian:
    one = sample(seed, 16, 4, 4, token_scale=scale)
    return _held(one, torch.full((16, 16), 1 / 16, dtype=one.X.dtype))


def _gain(seed: int, scale: float) -> float:
    """How much larger the ratio is at uniform attention than at attention peaked by a factor on unit-sized scores."""
    one = sample(seed, 16, 4, 4, token_scale=scale)
    T = one.setting.T
    return _ratio(_uniform(seed, scale)) / _ratio(_held(one, torch.softmax(30 * T / T.std(), -1).clamp_min(1e-300)))


def _held(one: Sample, A: Tensor) -> AttentionHessian:
    """The Hessian at an attention matrix, with the residual Y, so that only attention and tokens differ."""
    return one.held(holding(one.layer, one.X, A))


@claim("A38")
def diffuse_attention() -> Finding:
    """Uniform attention over normal tokens: the covariance stays, the third moment averages out."""
    lengths = (8, 32, 128, 512)
    seconds: list[list[float]] = [[] for _ in lengths]
    thirds: list[list[float]] = [[] for _ in lengths]
    for seed in seeds(5):
        for n, length in enumerate(lengths):
            X = normal(1000 * seed + length, length, 4)
            A = torch.full((1, length), 1 / length, dtype=X.dtype)
            seconds[n].append(float(second_moment(A, X).norm()))
            thirds[n].append(float(third_moment(A, X).norm()))
    powers = [slope(lengths, [row[k] for row in thirds]) for k in range(5)]
    skewed = [_skewed_third(seed) for seed in seeds(5)]
    substantial = at_least("uniform attention: norm of M_2, smallest", (v for row in seconds for v in row), 1.0)
    return Finding(
        checks=(substantial, at_least("uniform attention: norm of M_3, 512 tokens, smallest", thirds[-1], 1.0)),
        conditional=(substantial, at_least("the same with skewed tokens, 512 of them, smallest", skewed, 1.0)),
        support=(
            close("power of the number of tokens with which M_3 falls, mean", sum(powers) / len(powers), -0.5, 0.1),
        ),
        example="normal tokens of scale 1, uniform attention: "
        f"|M_2| = {seconds[0][0]:.2f} and |M_3| = {thirds[0][0]:.2f} over 8 of them, "
        f"{seconds[-1][0]:.2f} and {thirds[-1][0]:.2f} over 512.",
        curves=Curves.log_log(
            "tokens",
            "norm under uniform attention",
            {
                "M_2": (tuple(map(float, lengths)), tuple(row[0] for row in seconds)),
                "M_3": (tuple(map(float, lengths)), tuple(row[0] for row in thirds)),
            },
        ),
    )


def _skewed_third(seed: int) -> float:
    X = normal(1000 * seed, 512, 4).square()
    return float(third_moment(torch.full((1, 512), 1 / 512, dtype=X.dtype), X).norm())
