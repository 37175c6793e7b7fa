"""Attention without the softmax: closed forms, powers of the covariance, and the sign of the blocks."""

from __future__ import annotations

import math

import torch

from hessianlab import paper
from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Check, Finding, at_least, at_most, close, equal, share
from hessianlab.claims.quantities import (
    EXACT,
    ROUNDING,
    block_norm,
    gap,
    largest,
    negatives,
    relative_minimum,
    same,
)
from hessianlab.claims.samples import (
    DenseHessians,
    Sample,
    described,
    first_sample,
    many_samples,
    mean_square,
    numbers,
    small_samples,
)
from hessianlab.paper import kron

BLOCKS = ("QQ", "KK", "VV", "QK", "VQ", "VK")


def _remark_checks(part: str, pairs: tuple[str, ...]) -> tuple[Check, ...]:
    printed = {"outer": paper.remark_4_1_outer, "functional": paper.remark_4_1_functional}[part]
    return tuple(
        same(
            f"{part} {pair}",
            (
                (printed(s.setting, pair[0], pair[1]), s.linear.by_autograd.block(part, *pair))  # type: ignore[arg-type]
                for s in small_samples()
            ),
        )
        for pair in pairs
    )


@claim("P14")
def linear_outer_blocks() -> Finding:
    """The four printed blocks."""
    return Finding(checks=_remark_checks("outer", ("VV", "QQ", "VQ", "QK")))


@claim("P15")
def linear_functional_blocks() -> Finding:
    """Two printed blocks, zeros on the diagonal and nothing else zero."""
    sizes = {
        pair: [float(s.linear.by_autograd.block("functional", *pair).abs().max()) for s in small_samples()]
        for pair in BLOCKS
    }
    return Finding(
        checks=(
            *_remark_checks("functional", ("VQ", "QK")),
            *(at_most(f"largest entry of functional {p}", sizes[p], 0.0) for p in ("QQ", "KK", "VV")),
            *(
                at_least(f"largest entry of functional {p}, smallest of {len(sizes[p])}", sizes[p], 1e-6)
                for p in ("QK", "VQ", "VK")
            ),
        )
    )


@claim("P16")
def derivative_of_the_identity() -> Finding:
    """The derivative of an L x L matrix by itself has L^2 rows."""
    shapes = sorted({s.shape for s in small_samples()})
    sizes = {
        shape: torch.func.jacrev(lambda T: 1 * T)(torch.zeros(shape[0], shape[0])).reshape(shape[0] ** 2, -1).shape[0]
        for shape in shapes
    }
    second = torch.func.hessian(lambda T: 1 * T)(torch.zeros(3, 3))
    L, d, k = next(s for s in shapes if s[0] != s[1])
    by_length = {shape[0]: rows for shape, rows in sizes.items()}
    return Finding(
        checks=(
            *(equal(f"rows of dA/dT at L = {s[0]}, d_V = {s[1]}, against d_V^2", sizes[s], s[1] ** 2) for s in shapes),
            at_most("largest entry of the second derivative", float(second.abs().max()), 0.0),
        ),
        support=(
            *(equal(f"rows of dA/dT at L = {n}, against L^2", rows, n**2) for n, rows in by_length.items()),
            *_remark_checks("outer", ("QQ",)),
        ),
        example=f"L = {L}, d_V = {d}: dA/dT has {sizes[L, d, k]} rows, the printed identity {d * d}.",
    )


@claim("P42")
def powers_without_softmax() -> Finding:
    """Without the softmax every block is a polynomial of one degree, so a doubling shows it exactly."""
    checks = []
    for what, tokens, weights, degrees in (
        ("the tokens", 2.0, 1.0, {"outer": 6, "functional": 3}),
        ("all weights", 1.0, 2.0, {"outer": 4, "functional": 1}),
    ):
        powers = [_powers(s, tokens, weights) for s in small_samples()]
        for part, degree in degrees.items():
            found = [value for row in powers for (p, _), value in row.items() if p == part]
            checks.append(close(f"degree in {what}, {part} blocks, farthest of {len(found)}", found, degree, 1e-9))
    return Finding(checks=tuple(checks))


def _powers(one: Sample, tokens: float, weights: float) -> dict[tuple[str, str], float]:
    """log2 of what doubling the tokens or the weights does to every block that is not zero, by part and block."""
    layer = one.linear.layer
    scaled = layer.with_parameters({n: weights * w for n, w in one.weights.items()})
    before, after = one.held(layer), one.held(scaled, tokens * one.X)
    blocks = [("outer", b) for b in BLOCKS] + [("functional", b) for b in BLOCKS if b[0] != b[1]]
    return {(p, b): math.log2(block_norm(after, p, b) / block_norm(before, p, b)) for p, b in blocks}


@claim("P43")
def covariances_suffice() -> Finding:
    """Blocks from the two covariances and nothing else of the data."""
    gaps: dict[str, list[float]] = {}
    for one in small_samples():
        for name, value in {**_mlp_gaps(one), **_attention_gaps(one)}.items():
            gaps.setdefault(name, []).append(value)
    return Finding(checks=tuple(at_most(f"{name}, largest relative difference", v, EXACT) for name, v in gaps.items()))


def _mlp_gaps(one: Sample) -> dict[str, float]:
    """``F = X W_1 W_2``: H_o(1,1) = c L Sigma kron W_2 W_2^T, and Omega between the two layers."""
    L, d, k = one.shape
    first, second = one.weights["Q"], one.weights["K"].T.contiguous()
    by_autograd = DenseHessians(lambda w: one.X @ w["1"] @ w["2"], {"1": first, "2": second}, mean_square(one.Y))
    Sigma, c, eye = one.X.T @ one.X / L, 2 / (L * d), torch.eye(k, dtype=one.X.dtype)
    Omega = one.X.T @ (by_autograd.value - one.Y) / L
    mixed = torch.einsum("ac,be->abec", c * L * Omega, eye).reshape(d * k, k * d)
    return {
        "MLP outer from Sigma": gap(c * L * kron(Sigma, second @ second.T), by_autograd.block("outer", "1", "1")),
        "MLP functional from Omega": gap(mixed, by_autograd.block("functional", "1", "2")),
    }


def _attention_gaps(one: Sample) -> dict[str, float]:
    L, d, k = one.shape
    s, w, by_autograd = one.setting, one.weights, one.linear.by_autograd
    Sigma, eye = one.X.T @ one.X / L, torch.eye(k, dtype=one.X.dtype)
    Omega = one.X.T @ (by_autograd.value - one.Y) / L
    factor = 2 / (L * d) * L**2 / s.scale
    value_query = torch.einsum("ae,cb->abce", Sigma @ w["K"], Omega)
    query_key = torch.einsum("ac,be->abce", Omega @ w["V"].T @ Sigma, eye)
    outer = [gap(paper.remark_4_1_outer(s, p[0], p[1]), by_autograd.block("outer", *p)) for p in BLOCKS]  # type: ignore[arg-type]
    return {
        "attention outer from Sigma, six blocks": largest(outer),
        "attention functional VQ from Omega and Sigma": gap(
            factor * value_query.reshape(d * d, d * k), by_autograd.block("functional", "V", "Q")
        ),
        "attention functional QK from Omega and Sigma": gap(
            factor * query_key.reshape(d * k, d * k), by_autograd.block("functional", "Q", "K")
        ),
    }


def diagonal_minima(activation: str, block: str) -> list[float]:
    """Smallest over largest absolute eigenvalue of a diagonal block of the full Hessian, 50 layers."""
    chosen = [s if activation == "softmax" else s.linear for s in many_samples()]
    return [relative_minimum(s.hessian.full[block, block].to_dense()) for s in chosen]


@claim("P44")
def softmax_makes_blocks_indefinite() -> Finding:
    """True for the query and key blocks away from a perfect fit; the value block has no functional part."""
    found = {b: diagonal_minima("softmax", b) for b in "QKV"}
    linear = {b: diagonal_minima("linear", b) for b in "QK"}
    fitted = [relative_minimum(s.at_target.hessian.full["Q", "Q"].to_dense()) for s in many_samples()]
    one = first_sample((2, 1, 1), lambda s: float(s.by_autograd.block("full", "Q", "Q")) < 0)
    counted = {b: share(f"{b}{b} blocks with a negative eigenvalue", negatives(v), 50, 0.9) for b, v in found.items()}
    return Finding(
        checks=tuple(counted.values()),
        conditional=(
            counted["Q"],
            counted["K"],
            *(
                at_least(f"linear attention, {b}{b}: smallest relative eigenvalue", v, ROUNDING)
                for b, v in linear.items()
            ),
        ),
        support=(
            at_least("softmax, VV: smallest relative eigenvalue of 50", found["V"], ROUNDING),
            at_least("softmax at zero residual, QQ: smallest relative eigenvalue of 50", fitted, ROUNDING),
        ),
        example=f"{described(one)}: H(V,V) ="
        f" {numbers(one.by_autograd.block('full', 'V', 'V')[0, 0])}, H(Q,Q) ="
        f" {numbers(one.by_autograd.block('full', 'Q', 'Q')[0, 0])} = outer"
        f" {numbers(one.by_autograd.block('outer', 'Q', 'Q')[0, 0])} + functional"
        f" {numbers(one.by_autograd.block('functional', 'Q', 'Q')[0, 0])}.",
    )


@claim("P45")
def linear_blocks_are_semi_definite() -> Finding:
    """Block-hollow functional part, so that the diagonal is a Gram matrix."""
    functional = [
        float(s.linear.hessian.functional[b, b].to_dense().abs().max()) for s in many_samples() for b in "QKV"
    ]
    return Finding(
        checks=(
            at_most("largest entry of a functional diagonal block", functional, 0.0),
            *(
                at_least(f"{b}{b}: smallest relative eigenvalue of 50", diagonal_minima("linear", b), ROUNDING)
                for b in "QKV"
            ),
        )
    )
