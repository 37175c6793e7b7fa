"""Whether the softmax makes the blocks unequal: other activations in the same network."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from hessianlens.lab.claims.activations import named, negative_mass
from hessianlens.lab.claims.check import Check, at_least, at_most, close
from hessianlens.lab.claims.definition import claim
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
from hessianlens.lab.claims.samples import largest, seeds, smallest
from hessianlens.lab.experiments.common.means import geometric_mean
from hessianlens.theory import predicted_growth

REPEATS = 5
SMALLER = replace(HISTOGRAM, sequences=16)
"""The network of Figure 1 with fewer sequences."""


def orders(attention: str, network: Network = HISTOGRAM, sigma: float | None = None, repeats: int = REPEATS) -> float:
    """Orders of magnitude by which the value block's median entry exceeds the query block's."""
    other = with_attention(network, attention)
    return math.log10(geometric_mean(over_seeds(lambda seed: entry_ratio(other, seed, sigma), repeats)))


@claim(
    "A10",
    source="Figure 2, The root of the heterogeneity",
    statement="The heterogeneity between value and query block is directly caused by the softmax: without it, it "
    "disappears.",
    method="orders of magnitude between the median entries of the two blocks in the network of Figure 1 (d = 16, 16 "
    "sequences, 3 seeds), with softmax and, on the same weights, with five activations that do not normalise rows; "
    "without softmax at most half an order",
)
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
                "smallest orders for activations that are not 0 at 0 (sigmoid, exp)",
                smallest(found[a] for a in constant),
                1.5,
            ),
            at_most(
                "largest orders for activations that are 0 at 0 (linear, ReLU, tanh)",
                largest(abs(found[a]) for a in vanishing),
                0.5,
            ),
            at_most("orders for ReLU over its row sum: the query block is the larger", found["relu_normalised"], -0.5),
        ),
        correction="Softmax is one of many activations with this effect, and not the strongest. It comes from "
        "attention weights that tend to a constant as the scores go to 0: softmax (1/L), sigmoid (1/2), exp (1). It "
        "is absent where they vanish with the scores (identity, ReLU, tanh), and turned round for ReLU over its row "
        "sum, although that normalises rows as softmax does.",
        example="orders of magnitude between W_V and W_Q: "
        + ", ".join(f"{named(a)} {o:+.1f}" for a, o in found.items())
        + ".",
    )


@claim(
    "A13",
    source="The root of the heterogeneity: data dependence",
    statement="With sigmoid attention there is no spread of two orders of magnitude between the blocks.",
    method="the network of Figure 1 with sigmoid attention, 64 sequences, 5 seeds: orders of magnitude between the "
    "median entries of the two blocks and overlap of their histograms, beside softmax",
)
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
        correction="The spread with sigmoid is larger than with softmax: about three orders of magnitude in the same "
        "network. Sigmoid weights start at 1/2 instead of 1/L, which makes the value block larger, while the query "
        "block stays small because it still needs the slope of the activation twice. Removing the nonlinearity "
        "altogether (linear attention) does remove the spread.",
        example=f"d = 16, {REPEATS} seeds: the value block's median entry is {10**sigmoid:.0f} times the query "
        f"block's with sigmoid, {10**softmax:.0f} times with softmax, "
        f"{10 ** orders('linear', SMALLER, repeats=3):.1f} times with linear attention.",
        curves=Curves("standard deviation of the embeddings", "|H(V,V)| / |H(Q,Q)|", drawn, log_x=True, log_y=True),
    )


def mass(attention: str, sigma: float | None = None) -> float:
    """Mean share of negative curvature in the query block of the network."""
    network = with_attention(SMALLER, attention)
    return sum(negative_mass(entries(network, seed, sigma)["q"]) for seed in seeds(3)) / 3


SCALES = (0.2, 1.0, 2.0, 3.0, 5.0)
"""Embeddings from the initialisation of Figure 1 to scores at which attention is sharp."""


@claim(
    "A19",
    source="Back to the exam mistake",
    statement="A model with sigmoid attention has a less indefinite Hessian than one with softmax.",
    method="share of negative curvature (sum of negative over sum of absolute eigenvalues) of the query block, mean of "
    "3 seeds, d = 16, 16 sequences, embeddings of standard deviation 0.2 to 5; sigmoid's must be below softmax's",
)
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
        condition="the scores are small, as at initialisation.",
        support=(
            at_most("that ratio at sigma = 0.2", _ratio(found, 0.2), 0.1),
            at_least("largest such ratio beyond sigma = 1", later, 1),
            at_least("share of negative curvature, sigmoid with bias -log L, sigma = 0.2", biased, 0.1),
        ),
        correction="A plain sigmoid has no second derivative at a score of 0, so that at initialisation the "
        "functional part of its query block nearly vanishes. This is a property of that point. With larger scores the "
        "share of negative curvature is that of softmax, now below, now above; and with the bias -log L that sigmoid "
        "attention uses in practice it is there from the start.",
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


@claim(
    "A20",
    source="Softmax makes the Hessian more indefinite",
    statement="The Hessian of sigmoid attention is qualitatively closer to an MLP's than to a softmax Transformer's: "
    "blocks grow at one rate, have one size and no functional diagonal part.",
    method="three marks in which an MLP and softmax attention differ: difference of the powers of the data between two "
    "diagonal blocks, orders between their entries at initialisation, share of negative curvature at initialisation "
    "and at sigma = 3. An MLP's are taken as 0 (P47, A15), so that sigmoid must stay below half of softmax's in each",
)
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
        correction="In two of three marks sigmoid is farther from an MLP than softmax: its diagonal blocks differ by "
        "more powers of the data and by more orders of magnitude. In the third, negative curvature, it is nearer at "
        "initialisation only. What is close to an MLP in all three is linear attention.",
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


CLAIMS = (caused_by_softmax, no_spread_with_sigmoid, sigmoid_less_indefinite, closer_to_mlp)
