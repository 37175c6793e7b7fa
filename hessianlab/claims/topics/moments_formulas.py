"""Attention moments: their definition, and the blocks of the Hessian rebuilt from them alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlab import paper
from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, equal, true
from hessianlab.claims.quantities import EXACT, gap, same
from hessianlab.claims.samples import Sample, holding, normal, sample, small_samples
from hessianlab.paper import kron
from hessianlens.attention import SelfAttention, second_moment, third_moment
from hessianlens.layer import attention_hessian


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
        "outer VV from M_1": gap(s.loss_factor * kron(M_1.T @ M_1, eye), one.witness.block("outer", "V", "V")),
        "outer QQ from M_2": gap(Q.T @ middle @ Q, one.witness.block("outer", "Q", "Q")),
        "outer QK from M_2": gap(Q.T @ middle @ K, one.witness.block("outer", "Q", "K")),
        "functional QQ from M_3": gap(
            s.loss_factor / s.scale**2 * Q.T @ weighted @ Z_2 @ Q, one.witness.block("functional", "Q", "Q")
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
