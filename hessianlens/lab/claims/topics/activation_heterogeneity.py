"""Whether the softmax makes the blocks unequal: other activations in the same network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hessianlens.lab.claims.activations import named
from hessianlens.lab.claims.check import Check, at_least, at_most, close
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.draws import seeds
from hessianlens.lab.claims.figures import largest, negative_mass
from hessianlens.lab.claims.finding import Curves, Finding
from hessianlens.lab.claims.networks import (
    HISTOGRAM,
    Network,
    entries,
    entry_ratio,
    histogram_overlap,
    norm_ratio,
    over_seeds,
    with_attention,
)
from hessianlens.lab.experiments.common.means import geometric_mean
from hessianlens.theory import predicted_growth

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
            at_most("orders for ReLU over its row sum: the query block is the larger", found["relu_normalised"], -0.5),
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


def mass(attention: str, sigma: float | None = None) -> float:
    """Mean share of negative curvature in the query block of the network."""
    network = with_attention(SMALLER, attention)
    return sum(negative_mass(entries(network, seed, sigma)["q"]) for seed in seeds(3)) / 3


SCALES = (0.2, 1.0, 2.0, 3.0, 5.0)
"""Embeddings from the initialisation of Figure 1 to scores at which attention is sharp."""


@claim("A19")
def sigmoid_less_indefinite() -> Finding:
    """Shares of negative curvature."""
    kinds = ("softmax", "sigmoid")
    found = {(a, s): mass(a, s) for a in kinds for s in SCALES}
    less = {s: at_most(_over(s), _ratio(found, s), 1) for s in SCALES}
    later = max(_ratio(found, s) for s in SCALES[2:])
    biased = mass("sigmoid_log_length", 0.2)
    return Finding(
        checks=tuple(less.values()),
        conditional=(less[0.2], less[1.0]),
        support=(
            at_most("that ratio at sigma = 0.2", _ratio(found, 0.2), 0.1),
            at_least("largest such ratio beyond sigma = 1", later, 1),
            at_least("share of negative curvature, sigmoid with bias -log L, sigma = 0.2", biased, 0.1),
        ),
        example="share of negative curvature in the query block (softmax, sigmoid): "
        + ", ".join(f"({found['softmax', s]:.2f}, {found['sigmoid', s]:.2g}) at sigma = {s:g}" for s in SCALES)
        + f"; {named('sigmoid_log_length')} at sigma = 0.2: {biased:.2f}.",
        curves=Curves(
            "standard deviation of the embeddings",
            "share of negative curvature, query block",
            {a: (SCALES, tuple(found[a, s] for s in SCALES)) for a in kinds},
        ),
    )


def _ratio(found: dict[tuple[str, float], float], sigma: float) -> float:
    return found["sigmoid", sigma] / found["softmax", sigma]


def _over(sigma: float) -> str:
    return f"share of negative curvature, sigmoid over softmax, sigma = {sigma:g}"


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
