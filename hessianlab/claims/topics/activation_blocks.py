"""Other activations in place of softmax: sizes and signs of the blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.networks import (
    HISTOGRAM,
    Network,
    entry_ratio,
    histogram_overlap,
    last_block,
    norm_ratio,
    over_seeds,
    with_attention,
)
from hessianlab.claims.quantities import (
    ACTIVATION_SHAPES,
    EXACT,
    block_norm,
    both_signs,
    drawn_samples,
    extremes,
    gap,
    hessian,
    largest,
    named,
    negative_mass,
    relative_minimum,
    smallest,
)
from hessianlab.claims.samples import Sample, many_samples, sample
from hessianlab.experiments.statistics import geometric_mean, mean_interval
from hessianlens.layer import attention_hessian, predicted_growth
from hessianlens.losses import CrossEntropyLoss, CustomLoss, Loss, SquareLoss

REPEATS = 5
SMALLER = replace(HISTOGRAM, sequences=16)
"""The network of Figure 1 with fewer sequences."""


def orders(attention: str, network: Network = HISTOGRAM, sigma: float | None = None, repeats: int = REPEATS) -> float:
    """Orders of magnitude by which the value block's median entry exceeds the query block's."""
    other = with_attention(network, attention)
    return math.log10(geometric_mean(over_seeds(lambda seed: entry_ratio(other, seed, sigma), repeats)))


@claim("A10")
def caused_by_softmax() -> Finding:
    """Seven activations in one network."""
    constant, vanishing = ("sigmoid", "exp"), ("linear", "relu", "tanh")
    found = {a: orders(a, SMALLER, repeats=3) for a in ("softmax", *vanishing, *constant, "relu_normalised")}
    return Finding(
        checks=(
            at_least("orders between the blocks, softmax", found["softmax"], 1),
            *(
                at_most(f"orders between the blocks without softmax, {named(a)}", abs(found[a]), 0.5)
                for a in (*vanishing, *constant)
            ),
        ),
        support=(
            at_least(
                "smallest orders for activations that are not 0 at 0 (sigmoid, exp)", (found[a] for a in constant), 1.5
            ),
            at_most(
                "largest orders for activations that are 0 at 0 (linear, ReLU, tanh)",
                (abs(found[a]) for a in vanishing),
                0.5,
            ),
            at_most("orders for ReLU / row sum: the query block is the larger", found["relu_normalised"], -0.5),
        ),
        example="orders of magnitude between W_V and W_Q: "
        + ", ".join(f"{named(a)} {o:+.1f}" for a, o in found.items())
        + ".",
    )


@claim("A13")
def no_spread_with_sigmoid() -> Finding:
    """Sigmoid beside softmax."""
    sigmoid, softmax = orders("sigmoid"), orders("softmax")
    network = with_attention(HISTOGRAM, "sigmoid")
    overlap = largest(over_seeds(lambda seed: histogram_overlap(network, seed), REPEATS))
    sigmas = (0.02, 0.1, 0.2, 1.0, 3.0)
    drawn = {
        a: (sigmas, tuple(norm_ratio(with_attention(Network(), a), s, 3) for s in sigmas))
        for a in ("softmax", "sigmoid", "linear")
    }
    return Finding(
        checks=(at_most("orders between the blocks, sigmoid, d = 16, 5 seeds", sigmoid, 1),),
        support=(
            at_least("orders between the blocks, sigmoid", sigmoid, 2.5),
            at_least("orders by which the spread of sigmoid exceeds that of softmax", sigmoid - softmax, 1),
            at_most("largest overlap of the two histograms, sigmoid", overlap, 0.1),
        ),
        example=f"d = 16, {REPEATS} seeds: the value block's median entry is {10**sigmoid:.0f} times the query "
        f"block's with sigmoid, {10**softmax:.0f} times with softmax, "
        f"{10 ** orders('linear', SMALLER, repeats=3):.1f} times with linear attention.",
        curves=Curves.log_log("standard deviation of the embeddings", "|H(V,V)| / |H(Q,Q)|", drawn),
    )


@cache
def negative_share(attention: str, seed: int, sigma: float) -> float:
    """Share of negative curvature in the query block of one network."""
    network = with_attention(SMALLER, attention)
    return negative_mass(last_block(network, network.problem(seed, sigma), "q"))


def mass(attention: str, sigma: float) -> float:
    """Mean share of negative curvature over 3 seeds."""
    return float(np.mean(over_seeds(lambda seed: negative_share(attention, seed, sigma), 3)))


SCALES = (0.2, 0.5, 2.0, 3.0)
"""Embeddings from the initialisation of Figure 1 to scores at which attention is sharp."""

PAIRS = 12
LEVEL = 0.99
"""Of the intervals: four comparisons, none of which is to come out by chance."""


class NegativeShares(NamedTuple):
    """Shares of negative curvature with either activation on the same weights, mean over seeds.

    Attributes:
        softmax: With softmax.
        sigmoid: With sigmoid.
        low: Lower end of the interval of the mean difference, sigmoid less softmax.
        high: Upper end.
    """

    softmax: float
    sigmoid: float
    low: float
    high: float


def paired(sigma: float) -> NegativeShares:
    """The same seeds with both, so that what a draw does to either cancels."""
    softmax, sigmoid = (
        np.array([negative_share(attention, seed, sigma) for seed in seeds(PAIRS)])
        for attention in ("softmax", "sigmoid")
    )
    return NegativeShares(float(softmax.mean()), float(sigmoid.mean()), *mean_interval(sigmoid - softmax, LEVEL))


@claim("A19")
def sigmoid_less_indefinite() -> Finding:
    """Paired shares of negative curvature."""
    found = {sigma: paired(sigma) for sigma in SCALES}
    less = {sigma: at_most(f"{_DIFFERENCE}, sigma = {sigma:g}", pair.high, 0) for sigma, pair in found.items()}
    large = (found[2.0], found[3.0])
    biased = mass("sigmoid_log_length", 0.2)
    return Finding(
        checks=tuple(less.values()),
        conditional=(less[0.2], less[0.5]),
        support=(
            at_most("share of negative curvature, sigmoid over softmax, sigma = 0.2", _ratio(found[0.2]), 0.1),
            at_least(f"smallest {_DIFFERENCE}, sigma = 2 and 3", (pair.high for pair in large), 0),
            at_most("largest lower end of those intervals, sigma = 2 and 3", (pair.low for pair in large), 0),
            at_least("share of negative curvature, sigmoid with bias -log L, sigma = 0.2", biased, 0.1),
        ),
        example="share of negative curvature in the query block (softmax, sigmoid; interval of the difference): "
        + ", ".join(
            f"({p.softmax:.2f}, {p.sigmoid:.2g}; {p.low:+.2f} to {p.high:+.2f}) at sigma = {s:g}"
            for s, p in found.items()
        )
        + f"; {named('sigmoid_log_length')} at sigma = 0.2: {biased:.2f}.",
        curves=Curves(
            "standard deviation of the embeddings",
            "share of negative curvature, query block",
            {a: (SCALES, tuple(getattr(found[s], a) for s in SCALES)) for a in ("softmax", "sigmoid")},
        ),
    )


_DIFFERENCE = (
    f"upper end of the {LEVEL:.0%} interval of the share of negative curvature, sigmoid less softmax, {PAIRS} seeds"
)


def _ratio(pair: NegativeShares) -> float:
    return pair.sigmoid / pair.softmax


@claim("A20")
def closer_to_mlp() -> Finding:
    """Three marks, one by one."""
    gaps = {a: _power_gap(a) for a in ("softmax", "sigmoid", "linear")}
    sizes = {a: orders(a, SMALLER, repeats=3) for a in ("softmax", "sigmoid", "linear")}
    start = {a: mass(a, 0.2) for a in ("softmax", "sigmoid")}
    later = {a: mass(a, 3.0) for a in ("softmax", "sigmoid")}
    return Finding(
        checks=(
            _halfway("difference of powers", gaps),
            _halfway("orders between the blocks", sizes),
            _halfway("share of negative curvature at initialisation", start),
            _halfway("share of negative curvature at sigma = 3", later),
        ),
        support=(
            at_least("difference of powers, sigmoid less softmax", gaps["sigmoid"] - gaps["softmax"], 0.5),
            at_least("orders between the blocks, sigmoid less softmax", sizes["sigmoid"] - sizes["softmax"], 0.5),
            at_most(
                "share of negative curvature at initialisation, sigmoid over softmax",
                start["sigmoid"] / start["softmax"],
                0.1,
            ),
            close("difference of powers, linear attention", gaps["linear"], 0, 0),
            at_most("orders between the blocks, linear attention, without sign", abs(sizes["linear"]), 0.5),
        ),
        example=f"(powers, orders, negative share at initialisation): softmax ({gaps['softmax']}, "
        f"{sizes['softmax']:.1f}, {start['softmax']:.2g}), sigmoid ({gaps['sigmoid']}, {sizes['sigmoid']:.1f}, "
        f"{start['sigmoid']:.2g}), linear ({gaps['linear']}, {sizes['linear']:.1f}, 0).",
    )


def _halfway(what: str, found: Mapping[str, float]) -> Check:
    """Nearer to 0, an MLP's figure, than to softmax's."""
    return at_most(f"{what}, sigmoid, against half of softmax's", found["sigmoid"], round(found["softmax"] / 2, 2))


def _power_gap(attention: str) -> int:
    """Powers of the token scale between the full query and value blocks, from the activation near zero."""
    query, value = (predicted_growth(attention, "full", b, b) for b in "QV")
    assert query is not None and value is not None
    return abs(query - value)


COUNT = 50
SIGN = 1e-9
"""Size, relative to the largest eigenvalue, from which an eigenvalue has a sign."""


def _outer_minimum(loss: str) -> float:
    """Smallest relative eigenvalue of the outer product of the whole layer."""
    return smallest(
        relative_minimum(attention_hessian(s.layer, s.X, _loss(loss, s.Y)).outer[:].to_dense())
        for s in many_samples()[:20]
    )


def _loss(name: str, Y: Tensor) -> Loss:
    if name == "square loss":
        return SquareLoss(Y)
    if name == "cross-entropy":
        return CrossEntropyLoss(Y.argmax(-1)[None])
    return CustomLoss(lambda F: (1 - torch.exp(-(F - Y).square().sum(-1) / 2)).mean())


@claim("A4")
def parts_and_signs() -> Finding:
    """The sum, and the outer product under three losses."""
    decomposition = largest(
        gap(s.by_autograd.outer + s.by_autograd.functional, s.by_autograd.full) for s in drawn_samples()
    )
    convex = tuple(
        at_least(f"smallest relative eigenvalue of H_o, {n}", _outer_minimum(n), -EXACT)
        for n in ("square loss", "cross-entropy")
    )
    both = _indefinite([s.hessian.functional[:].to_dense() for s in many_samples()[:20]])
    common = (
        at_most("largest distance of H_o + H_f from the Hessian", decomposition, EXACT),
        *convex,
        share("layers whose H_f is indefinite", both, 20),
    )
    bounded = _outer_minimum("bounded loss")
    return Finding(
        checks=(*common, at_least("smallest relative eigenvalue of H_o, bounded loss", bounded, -EXACT)),
        conditional=common,
        support=(at_most("smallest relative eigenvalue of H_o, bounded loss", bounded, -0.01),),
        example="one output F = w, target 0, loss 1 - exp(-F^2 / 2): the curvature (1 - w^2) exp(-w^2 / 2) is "
        f"{_bounded_curvature(2.0):.2f} at w = 2; in 20 random layers the smallest eigenvalue of H_o reaches "
        f"{bounded:.2f} of the largest.",
    )


def _bounded_curvature(w: float) -> float:
    at = torch.tensor(w, dtype=torch.float64)
    return float(torch.func.hessian(lambda F: 1 - torch.exp(-(F**2) / 2))(at))


def _indefinite(matrices: list[Tensor]) -> int:
    return sum(both_signs(matrix, SIGN) for matrix in matrices)


def _functional_query(one: Sample) -> Tensor:
    return one.hessian.functional["Q", "Q"].to_dense()


@claim("A17")
def functional_blocks_indefinite() -> Finding:
    """Fifty layers, two tokens, and no residual."""
    blocks = {n: [s.hessian.functional[n, n].to_dense() for s in many_samples()] for n in "QK"}
    generic = tuple(
        share(f"layers with H_f({n},{n}) of both signs, L = 6", _indefinite(m), COUNT, 0.95) for n, m in blocks.items()
    )
    two, three = ([_functional_query(sample(seed, n, 3, 2)) for seed in seeds(COUNT)] for n in (2, 3))
    signs = [extremes(m) for m in two]
    positive, negative = sum(low > -SIGN for low, _ in signs), sum(high < SIGN for _, high in signs)
    fitted = largest(float(_functional_query(s.at_target).norm()) for s in many_samples()[:10])
    smallest_norm = smallest(float(m.norm()) for ms in blocks.values() for m in ms)
    return Finding(
        checks=(
            *generic,
            at_least("smallest norm of such a block", smallest_norm, 1e-6),
            share("layers with H_f(Q,Q) of both signs, two tokens", _indefinite(two), COUNT, 0.95),
            at_least("norm of H_f(Q,Q) where the output is the target", fitted, 1e-6),
        ),
        conditional=generic,
        support=(
            share("two tokens: layers without a negative eigenvalue of H_f(Q,Q)", positive, COUNT, 0.02),
            share("two tokens: layers without a positive eigenvalue of H_f(Q,Q)", negative, COUNT, 0.02),
            share("three tokens: layers with H_f(Q,Q) of both signs", _indefinite(three), COUNT, 0.9),
            at_most("norm of H_f(Q,Q) where the output is the target", fitted, 1e-12),
        ),
        example=f"two tokens, {COUNT} random layers: H_f(Q,Q) has both signs in {_indefinite(two)}, only non-negative "
        f"eigenvalues in {positive}, only non-positive ones in {negative}.",
    )


def _minimum(activation: str) -> list[float]:
    """Of every layer, the smallest relative eigenvalue of its diagonal blocks."""
    layers = [hessian(activation, seed, ACTIVATION_SHAPES[0], 1.0).full for seed in seeds(COUNT)]
    return [smallest(relative_minimum(full[n, n].to_dense()) for n in "QKV") for full in layers]


def _hollow(activation: str) -> Check:
    sizes = []
    for seed in seeds(COUNT):
        H = hessian(activation, seed, ACTIVATION_SHAPES[0], 1.0)
        parts = [block_norm(H, "functional", 2 * n) / block_norm(H, "outer", 2 * n) for n in "QKV"]
        sizes.append(largest(parts))
    return at_most(f"{named(activation)}: largest functional over outer diagonal block", sizes, 1e-12)


@claim("A18")
def removing_softmax() -> Finding:
    """Signs with linear, ReLU and sigmoid attention."""
    lows = {a: _minimum(a) for a in ("linear", "relu", "sigmoid")}
    hollow = {a: _hollow(a) for a in lows}
    signs = {
        a: share(f"{named(a)}: layers with semi-definite diagonal blocks", sum(v > -SIGN for v in found), COUNT)
        for a, found in lows.items()
    }
    kept = tuple(check for a in ("linear", "relu") for check in (hollow[a], signs[a]))
    negative = sum(v < -SIGN for v in lows["sigmoid"])
    return Finding(
        checks=(*kept, hollow["sigmoid"], signs["sigmoid"]),
        support=(*kept, share("sigmoid: layers with an indefinite diagonal block", negative, COUNT, 0.8)),
        example=f"{COUNT} random layers: a diagonal block has a negative eigenvalue in {negative} with sigmoid, in "
        f"{sum(v < -SIGN for v in lows['linear'])} with linear attention; smallest with sigmoid: "
        f"{smallest(lows['sigmoid']):.2f} of the largest.",
    )
