"""Spectra of the blocks, and what softmax and two query-key matrices change in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed, measured
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close
from hessianlab.claims.quantities import ACTIVATION_SHAPES, EXACT, ROUNDING, gap, merged, relative_minimum, same, slope
from hessianlab.claims.samples import (
    DenseHessians,
    Sample,
    described,
    fixed,
    holding,
    mean_square,
    normal,
    numbers,
    sample,
    samples_of,
    small_samples,
)
from hessianlab.paper import kron
from hessianlens.attention import SelfAttention, SingleMatrixAttention
from hessianlens.layer import AttentionHessian, attention_hessian

SCALES = (0.001, 0.003, 0.01)
SHARES = (1e-5, 1e-4, 1e-3)
"""Shares of uniform attention that are mixed with one-hot attention."""

PROPERTIES: dict[str, Callable[[Tensor], float]] = {
    "trace": lambda block: abs(float(block.trace())),
    "norm": lambda block: float(block.norm()),
    "largest absolute eigenvalue": lambda block: float(torch.linalg.eigvalsh(block).abs().max()),
}

Layer = SelfAttention | SingleMatrixAttention


@measured
def _samples() -> tuple[Sample, ...]:
    return samples_of(ACTIVATION_SHAPES, 3)


def _dense(H: AttentionHessian, part: str, block: str) -> Tensor:
    return H.part(part)[block[0], block[1]].to_dense()


def _mixed(one: Sample, eps: float) -> Tensor:
    """One-hot attention, each token on the next one, mixed with a share of uniform attention."""
    L = len(one.X)
    one_hot = torch.eye(L, dtype=one.X.dtype).roll(1, 1)
    return (1 - eps) * one_hot + eps / L


def _power_checks(
    what: str, steps: tuple[float, ...], at: Callable[[Sample, float], AttentionHessian], stated: Mapping[str, float]
) -> tuple[Check, ...]:
    """One check per block: powers of the three properties along some steps, the one farthest from what is stated."""
    found: dict[str, list[float]] = {name: [] for name in stated}
    for one in _samples():
        hessians = [at(one, step) for step in steps]
        for name, powers in found.items():
            part, block = name.split()
            dense = [_dense(H, part, block) for H in hessians]
            powers += [slope(steps, [measure(matrix) for matrix in dense]) for measure in PROPERTIES.values()]
    return tuple(
        close(
            f"power of {what} in trace, norm and largest eigenvalue of {name}, farthest of {len(powers)}",
            powers,
            stated[name],
            0.05,
        )
        for name, powers in found.items()
    )


def _value_eigenvalues(one: Sample, scale: float) -> Tensor:
    """Eigenvalues of the value block, each once, the largest first; the block has each of them d_V times."""
    block = _dense(one.held(X=scale * one.X), "outer", "VV")
    return torch.linalg.eigvalsh(block).flip(0)[:: one.shape[1]]


@claim("P69")
def spectra_of_blocks() -> Finding:
    """Powers of the data, the attention moments and the weights in trace, norm and largest eigenvalue."""
    data = {"outer QQ": 6, "outer KK": 6, "outer VV": 2, "functional QQ": 5, "functional KK": 5}
    moments = {"outer QQ": 2, "outer KK": 2, "outer VV": 0, "functional QQ": 1, "functional KK": 1}
    weights = {"outer QQ": 4, "outer KK": 4, "outer VV": 0, "functional QQ": 3, "functional KK": 3}
    second = [slope(SCALES, [float(_value_eigenvalues(s, t)[1]) for t in SCALES]) for s in _samples()]
    one = _samples()[0]
    curves = {
        f"{name}, {label}": (
            SCALES,
            tuple(PROPERTIES[label](_dense(one.held(X=t * one.X), *name.split())) for t in SCALES),
        )
        for name in ("outer QQ", "functional QQ", "outer VV")
        for label in ("trace", "largest absolute eigenvalue")
    }
    return Finding(
        checks=(
            *_power_checks("the token scale", SCALES, lambda s, scale: s.held(X=scale * s.X), data),
            *_power_checks(
                "the share of uniform attention",
                SHARES,
                lambda s, eps: s.held(holding(s.layer, s.X, _mixed(s, eps))),
                moments,
            ),
            *_power_checks("all weights, attention held,", (1.0, 2.0), _scaled_weights, weights),
        ),
        support=(close("power of the token scale in the second eigenvalue of VV, farthest of 9", second, 6, 0.05),),
        curves=Curves.log_log("scale of the tokens", "trace and largest eigenvalue", curves),
    )


def _scaled_weights(one: Sample, factor: float) -> AttentionHessian:
    layer = one.layer.with_parameters({name: factor * w for name, w in one.weights.items()})
    return one.held(holding(layer, one.X, one.setting.A))


def _redrawn(one: Sample, weight: str) -> Sample:
    """Another matrix in the place of one weight."""
    w = one.weights[weight]
    return replace(one, weights={**one.weights, weight: normal(first_seed() + 500, *w.shape)})


def _with_attention_of(one: Sample, other: Sample) -> AttentionHessian:
    """The Hessian at the weights of `other`, attention matrix and residual those of `one`."""
    return one.held(holding(other.layer, one.X, one.setting.A))


def _changes(weight: str) -> dict[str, list[float]]:
    """Relative change of blocks when a weight is drawn anew, attention and residual held."""
    found: dict[str, list[float]] = {}
    for one in small_samples():
        before, after = one.held(), _with_attention_of(one, _redrawn(one, weight))
        for name in ("full QQ", "full KK", "full VV", "t_functional QK"):
            found.setdefault(name, []).append(gap(_dense(after, *name.split()), _dense(before, *name.split())))
    return found


def _regauged(one: Sample) -> Sample:
    """W_Q three times as large and W_K three times smaller: the same function."""
    w = one.weights
    return replace(one, weights={**w, "Q": 3 * w["Q"], "K": w["K"] / 3})


def _single(one: Sample, activation: str = "softmax") -> SingleMatrixAttention:
    return SingleMatrixAttention(merged(one), one.weights["V"], activation=activation)


@claim("P70")
def explicit_query_key_weights() -> Finding:
    """Same attention, other weights: the blocks of two matrices change, those of one do not."""
    single, moved, outputs = [], [], []
    for one in small_samples():
        other = _regauged(one)
        moved.append(gap(other.query_key("full"), one.query_key("full")))
        outputs.append(gap(other.layer(one.X), one.layer(one.X)))
        layer = _single(one)
        redrawn = replace(layer, W_QK=normal(first_seed() + 500, *layer.W_QK.shape))
        held = replace(redrawn, bias=layer.attend(one.X[None]).scores[0] - redrawn.attend(one.X[None]).scores[0])
        blocks = [_held(one, which).full["QK", "QK"].to_dense() for which in (held, layer)]
        single.append(gap(*blocks))
    by_query, by_key = _changes("Q"), _changes("K")
    small = sample(first_seed(), 2, 1, 1)
    return Finding(
        checks=(
            at_most("outputs with 3 W_Q and W_K / 3, largest relative difference", outputs, EXACT),
            at_least("query-key Hessian with 3 W_Q and W_K / 3, smallest relative change", moved, 0.1),
            at_least("QQ with another W_K, attention held, smallest relative change", by_key["full QQ"], 0.1),
            at_least("KK with another W_Q, attention held, smallest relative change", by_query["full KK"], 0.1),
            at_most("one matrix: its block with another W_QK, attention held, largest relative change", single, EXACT),
        ),
        support=(
            at_most("QQ with another W_Q, attention held, largest relative change", by_query["full QQ"], EXACT),
            at_most("KK with another W_K, attention held, largest relative change", by_key["full KK"], EXACT),
            at_most("VV with another W_Q or W_K, largest", by_query["full VV"] + by_key["full VV"], EXACT),
            at_most(
                "T-functional Hessian with another W_Q or W_K, attention held, largest relative change",
                by_query["t_functional QK"] + by_key["t_functional QK"],
                EXACT,
            ),
        ),
        example=f"{described(small)}: H(Q,Q), H(K,K) = {_diagonal(small)}; with 3 W_Q and W_K / 3, the same function,"
        f" {_diagonal(_regauged(small))}.",
    )


def _held(one: Sample, layer: Layer, scale: float = 1.0) -> AttentionHessian:
    """Any layer with the loss curvature and the residual of `Sample.held`."""
    factor = 2 / one.Y.numel()
    return attention_hessian(layer, scale * one.X, grad=factor * one.Y, curvature=factor)


def _diagonal(one: Sample) -> str:
    return ", ".join(numbers(one.by_autograd.block("full", name, name)[0, 0]) for name in "QK")


def _linear_single(one: Sample) -> DenseHessians:
    """``F = X W_QK X^T X W_V``, by automatic differentiation."""
    weights = {"QK": merged(one), "V": one.weights["V"]}
    return DenseHessians(lambda w: one.X @ w["QK"] @ one.X.T @ one.X @ w["V"], weights, mean_square(one.Y))


@claim("P71")
def linear_model_with_one_matrix() -> Finding:
    """Lemma 4.1 and Remark 4.1 with the identity in the place of the softmax and one matrix."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    hollow, minima, whole = [], [], []
    for one in small_samples():
        L, d = one.X.shape
        dense, W, V = _linear_single(one), merged(one), one.weights["V"]
        Sigma, Omega = one.X.T @ one.X / L, one.X.T @ (dense.value - one.Y) / L
        c, eye = 2 * L**2 / d, torch.eye(d, dtype=one.X.dtype)
        Z_1 = kron(one.X, one.X.T @ one.X)  # (I kron X^T)(X kron X): Lemma 4.1 with dA/dT the identity
        middle = kron(torch.eye(L, dtype=one.X.dtype), V @ V.T)
        printed = {
            "H(QK,QK) of Lemma 4.1": (2 / (L * d) * Z_1.T @ middle @ Z_1, ("full", "QK", "QK")),
            "H(QK,QK) as Sigma kron Sigma W_V W_V^T Sigma": (
                c * kron(Sigma, Sigma @ V @ V.T @ Sigma),
                ("full", "QK", "QK"),
            ),
            "H(V,V)": (c * kron(Sigma @ W.T @ Sigma @ W @ Sigma, eye), ("full", "V", "V")),
            "outer (V,QK)": (c * kron(Sigma @ W.T @ Sigma, V.T @ Sigma), ("outer", "V", "QK")),
            "functional (QK,V)": (
                c / L * torch.einsum("ae,bc->abce", Omega, Sigma).reshape(d * d, d * d),
                ("functional", "QK", "V"),
            ),
        }
        for name, (matrix, where) in printed.items():
            pairs.setdefault(name, []).append((matrix, dense.block(*where)))
        hollow += [float(dense.block("functional", n, n).abs().max()) for n in ("QK", "V")]
        minima += [relative_minimum(dense.block("full", n, n)) for n in ("QK", "V")]
        whole.append(relative_minimum(dense.full))
    return Finding(
        checks=(
            *(same(name, found) for name, found in pairs.items()),
            at_most("functional diagonal blocks, largest entry", hollow, 0.0),
            at_least("diagonal blocks, smallest relative eigenvalue", minima, ROUNDING),
        ),
        support=(at_most("whole Hessian: smallest relative eigenvalue, largest of 12", max(whole), -1e-6),),
    )


def _data_spread(activation: str, *, pair: bool) -> float:
    """Largest minus smallest power of the token scale among the outer diagonal blocks, mean over layers."""
    spreads = []
    for one in _samples():
        layer = replace(one.layer, activation=activation) if pair else _single(one, activation)
        powers = [
            slope(SCALES, [float(_held(one, layer, s).part("outer")[n, n].to_dense().norm()) for s in SCALES])
            for n in layer.names
        ]
        spreads.append(max(powers) - min(powers))
    return sum(spreads) / len(spreads)


def _weight_spread(activation: str, *, pair: bool) -> float:
    """The same for the weights: all of them doubled, a softmax held at its attention matrix."""
    spreads = []
    for one in _samples():
        layer: Layer = replace(one.layer, activation=activation) if pair else _single(one, activation)
        doubled: Layer = layer.with_parameters({name: 2 * w for name, w in layer.parameters.items()})
        if activation == "softmax":
            doubled = replace(doubled, bias=layer.attend(one.X[None]).scores[0] - doubled.attend(one.X[None]).scores[0])
        before, after = (_held(one, which).part("outer") for which in (layer, doubled))
        powers = [math.log2(float(after[n, n].to_dense().norm() / before[n, n].to_dense().norm())) for n in layer.names]
        spreads.append(max(powers) - min(powers))
    return sum(spreads) / len(spreads)


@claim("P72")
def sources_of_heterogeneity() -> Finding:
    """Spread of the powers over the outer diagonal blocks, with and without either choice."""
    kinds = [(activation, pair) for activation in ("softmax", "linear") for pair in (True, False)]
    data = {kind: _data_spread(kind[0], pair=kind[1]) for kind in kinds}
    weights = {kind: _weight_spread(kind[0], pair=kind[1]) for kind in kinds}
    usual, no_softmax, one_matrix = ("softmax", True), ("linear", True), ("softmax", False)
    common = (
        at_least("powers of the data, spread with softmax minus without", data[usual] - data[no_softmax], 1),
        at_least("powers of the weights, spread with softmax minus without", weights[usual] - weights[no_softmax], 1),
        at_least("powers of the weights, two matrices minus one", weights[usual] - weights[one_matrix], 1),
    )
    shown = "; ".join(
        f"{activation}, {'two matrices' if pair else 'one matrix'} {fixed([data[activation, pair]])} and"
        f" {fixed([weights[activation, pair]])}"
        for activation, pair in kinds
    )
    return Finding(
        checks=(
            *common,
            at_least("powers of the data, spread with two matrices minus one", data[usual] - data[one_matrix], 1),
        ),
        conditional=common,
        support=(
            close("powers of the data, two matrices minus one, softmax", data[usual] - data[one_matrix], 0, 0.05),
            close("powers of the weights, two matrices, linear", weights[no_softmax], 0, 1e-6),
            close("powers of the weights, one matrix, linear", weights["linear", False], 0, 1e-6),
        ),
        example=f"largest minus smallest power among the outer diagonal blocks, of data and of weights: {shown}.",
    )
