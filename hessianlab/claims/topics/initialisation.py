"""Networks at initialisation: sizes of entries, powers of the embeddings, and layer norm in front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hessianlab.claims.definition import claim
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.networks import (
    BLOCK,
    HISTOGRAM,
    HISTOGRAM_SIGMA,
    Network,
    entry_ratio,
    growth,
    histogram_overlap,
    mean_norms,
    norm_ratio,
    norms,
    over_seeds,
    typical,
    with_attention,
)
from hessianlab.claims.quantities import largest, smallest
from hessianlab.claims.samples import fixed
from hessianlab.experiments.statistics import geometric_mean

REPEATS = 5
MANY = 20
"""Seeds where a figure is close to its threshold: one network's ratio varies by a factor of two."""

SIGMAS = (0.02, 0.1, HISTOGRAM_SIGMA, 1.0)
LINEAR = with_attention(HISTOGRAM, "linear")
_WHERE = f"median absolute entries, geometric mean over {REPEATS} seeds, d = 16, 64 sequences"


def orders(ratio: float) -> float:
    """Orders of magnitude of a ratio."""
    return math.log10(ratio)


def value_over_query(repeats: int = REPEATS, sigma: float | None = None) -> float:
    """How much larger the value block's median entry is than the query block's, in the network of Figure 1."""
    return geometric_mean(over_seeds(lambda seed: entry_ratio(HISTOGRAM, seed, sigma), repeats))


def ratio_curve(sigmas: Sequence[float]) -> Curves:
    """The ratio of the two blocks' norms over the scale of the embeddings."""
    ratios = tuple(norm_ratio(BLOCK, sigma, 3) for sigma in sigmas)
    return Curves(
        "standard deviation of the embeddings", "|H(V,V)| / |H(Q,Q)|", {"softmax": (tuple(sigmas), ratios)}, True, True
    )


def _two_orders_at_figure_1() -> Check:
    return close(f"orders of magnitude between W_V and W_Q, {MANY} seeds", orders(value_over_query(MANY)), 2.0, 0.5)


def _rounded(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"


def _scale_dependence() -> tuple[dict[float, float], str]:
    found = {sigma: norm_ratio(BLOCK, sigma, 3) for sigma in (0.02, 0.1, 0.2, 1.0, 2.0)}
    return found, ", ".join(f"{_rounded(ratio)} at sigma = {sigma:g}" for sigma, ratio in found.items())


@claim("P33")
def two_orders() -> Finding:
    """Median entries and histograms of Figure 1."""
    return Finding(
        checks=(
            _two_orders_at_figure_1(),
            at_most(
                "largest overlap of the two histograms",
                over_seeds(lambda s: histogram_overlap(HISTOGRAM, s), MANY),
                0.5,
            ),
        ),
        curves=ratio_curve((0.02, 0.1, 0.2, 1.0, 2.0)),
    )


@claim("P34")
def similar_without_softmax() -> Finding:
    """Median entries and histograms of Figure 4."""
    ratio = geometric_mean(over_seeds(lambda seed: entry_ratio(LINEAR, seed), REPEATS))
    overlaps = over_seeds(lambda seed: histogram_overlap(LINEAR, seed), REPEATS)
    return Finding(
        checks=(
            close(f"orders of magnitude between W_V and W_Q, linear attention, {_WHERE}", orders(ratio), 0.0, 0.5),
            at_least("smallest overlap of the two histograms", overlaps, 0.6),
        )
    )


def _softmax_effect(block: str, sigma: float) -> float:
    """Orders of magnitude by which removing the softmax changes a block's median entry, without sign."""
    return abs(orders(typical(LINEAR, block, REPEATS, sigma) / typical(HISTOGRAM, block, REPEATS, sigma)))


@claim("P35")
def softmax_moves_queries() -> Finding:
    """The effect on either block at four scales."""
    effect = {sigma: {b: _softmax_effect(b, sigma) for b in "qv"} for sigma in SIGMAS}

    def stronger(sigma: float) -> Check:
        return at_least(
            f"orders more for W_Q than for W_V at sigma = {sigma:g}", effect[sigma]["q"] - effect[sigma]["v"], 0.5
        )

    at_figure = (
        stronger(HISTOGRAM_SIGMA),
        at_most("orders for W_V at the figure's sigma", effect[HISTOGRAM_SIGMA]["v"], 0.75),
    )
    small = effect[SIGMAS[0]]
    return Finding(
        checks=(*(stronger(sigma) for sigma in SIGMAS), at_figure[1]),
        conditional=at_figure,
        support=(
            at_least("orders more for W_V than for W_Q at sigma = 0.02", small["v"] - small["q"], 0.5),
            at_least("orders for W_V at sigma = 0.02", small["v"], 1),
        ),
        example="orders of magnitude (W_Q, W_V): "
        + ", ".join(f"({e['q']:.1f}, {e['v']:.1f}) at sigma = {sigma:g}" for sigma, e in effect.items())
        + ".",
        curves=Curves.log_log(
            "standard deviation of the embeddings",
            "median absolute entry",
            {
                f"W_{b.upper()}, {name}": (SIGMAS, tuple(typical(network, b, REPEATS, s) for s in SIGMAS))
                for b in "qv"
                for name, network in (("softmax", HISTOGRAM), ("linear", LINEAR))
            },
        ),
    )


@claim("A5")
def two_orders_in_article() -> Finding:
    """As P33, with the ratio over the scale of the embeddings as a remark."""
    found, shown = _scale_dependence()
    of_norms = norm_ratio(replace(HISTOGRAM, sequences=16), None, MANY)
    return Finding(
        checks=(
            close(f"orders between the median absolute entries, {MANY} seeds", orders(value_over_query(MANY)), 2, 0.5),
            close(f"orders between the norms, {MANY} seeds", orders(of_norms), 2, 0.5),
        ),
        support=(
            close(
                "exponent of sigma in the ratio between 0.02 and 0.1",
                orders(found[0.02] / found[0.1]) / orders(0.02 / 0.1),
                -3,
                0.2,
            ),
            at_most("ratio at sigma = 2", found[2.0], 1),
        ),
        example=f"|H(V,V)| / |H(Q,Q)|, d = 32: {shown}.",
        curves=ratio_curve(tuple(found)),
    )


@claim("A6")
def absolute_sizes() -> Finding:
    """Median entries as such."""
    value, query = (typical(HISTOGRAM, block, MANY) for block in "vq")
    overlap = largest(over_seeds(lambda seed: histogram_overlap(HISTOGRAM, seed), MANY))
    terms = HISTOGRAM.sequences * 6
    return Finding(
        checks=(
            close(f"log10 of the value block's median entry, {MANY} seeds", orders(value), -3, 0.5),
            close(f"log10 of the query block's median entry, {MANY} seeds", orders(query), -5, 0.5),
            at_most("largest overlap of the histograms", overlap, 0.3),
        ),
        support=(
            at_most("log10 of the value block's median entry, an order below what is given", orders(value), -4),
            at_most("log10 of the query block's median entry, an order below what is given", orders(query), -6),
            close("orders between the two", orders(value / query), 2, 0.5),
        ),
        example=f"d = 16, 64 sequences, {MANY} seeds: median entries {value:.2g} (value) and {query:.2g} (query), "
        f"ratio {value / query:.0f}; at most {overlap:.0%} of the histograms overlap.",
        numbers={"value_factor": 0.001 / value, "query_factor": 1e-05 / query, "terms": terms},
    )


@claim("A31")
def factors_of_hundreds() -> Finding:
    """Ratios at two widths."""
    medians = over_seeds(lambda seed: entry_ratio(HISTOGRAM, seed), MANY)
    narrow = norm_ratio(replace(HISTOGRAM, sequences=16), None, MANY)
    wide = norm_ratio(replace(HISTOGRAM, d_model=128, sequences=16), None, 2)
    return Finding(
        checks=(
            share("seeds with a ratio of median entries of at least 100, d = 16", sum(m >= 100 for m in medians), MANY),
            at_least("ratio of norms, d = 128", wide, 100),
        ),
        conditional=(at_least("ratio of norms, d = 128, all weights N(0, 0.64/128)", wide, 100),),
        support=(
            at_least("ratio of median entries, d = 16, geometric mean", geometric_mean(medians), 10),
            at_most("ratio of median entries, d = 16, geometric mean", geometric_mean(medians), 100),
        ),
        example=f"d = 16: median entries differ by {smallest(medians):.0f} to {largest(medians):.0f}, norms by "
        f"{narrow:.0f}; d = 128: norms by {wide:.0f}.",
    )


def _part(block: str, part: str, sigma: float) -> float:
    """Geometric mean over 3 seeds of a block's norm."""
    return geometric_mean(over_seeds(lambda seed: norms(BLOCK, seed, sigma)[0, block, part], 3))


@claim("A9")
def arithmetic_of_powers() -> Finding:
    """The powers near 0.1, and the orders between the blocks there."""
    sigma = 0.1
    sizes = {(b, p): _part(b, p, sigma) for b in "qv" for p in ("full", "ggn")}
    powers = {key: math.log2(size / _part(*key, sigma / 2)) for key, size in sizes.items()}
    apart = {p: math.log10(sizes["v", p] / sizes["q", p]) for p in ("full", "ggn")}

    def as_claimed(part: str, name: str) -> tuple[Check, Check, Check]:
        return (
            close(f"power of sigma in the query block, {name}", powers["q", part], 6, 0.2),
            close(f"power of sigma in the value block, {name}", powers["v", part], 2, 0.2),
            close(f"orders between the two at sigma = 0.1, {name}", apart[part], 4, 0.5),
        )

    outer = as_claimed("ggn", "outer product")
    return Finding(
        checks=(*outer, *as_claimed("full", "whole block")),
        conditional=outer,
        support=(
            close("power of sigma in the query block, whole block", powers["q", "full"], 5, 0.2),
            at_most(
                "outer product over the whole query block at sigma = 0.1", sizes["q", "ggn"] / sizes["q", "full"], 0.2
            ),
            at_most("orders between the whole blocks at sigma = 0.1", apart["full"], 3.5),
        ),
        example=f"sigma = 0.1, d = 32: query block {sizes['q', 'full']:.1e}, its outer product "
        f"{sizes['q', 'ggn']:.1e}, value block {sizes['v', 'full']:.1e}: ratios of {10 ** apart['full']:.0f} and "
        f"{10 ** apart['ggn']:.0f}.",
    )


NORM_SIGMAS = (0.01, 0.1, 1.0, 10.0)
"""The range of Figure 3b."""

SMALL = (0.01, 0.1)
NORM_REPEATS = 3
PLAIN = Network(d_model=16)
QUERY, VALUE = (0, "q", "full"), (0, "v", "full")


def exponents(attention: str, norm: str | None, sigmas: tuple[float, ...] = NORM_SIGMAS) -> tuple[float, float]:
    """Fitted exponents of the full query and value blocks."""
    network = replace(PLAIN, attention=attention, norm=norm)
    return growth(network, sigmas, QUERY, NORM_REPEATS), growth(network, sigmas, VALUE, NORM_REPEATS)


def difference(attention: str, norm: str | None, sigmas: tuple[float, ...] = NORM_SIGMAS) -> float:
    """How far apart the two exponents are."""
    return _apart(exponents(attention, norm, sigmas))


def smaller_with_norm() -> tuple[Check, ...]:
    """The exponents of the two blocks come closer with Pre-LN, over the whole range and for small embeddings."""
    return (
        at_least("difference of exponents without norm, sigma 0.01 to 0.1", difference("softmax", None, SMALL), 2.5),
        at_most("difference of exponents with Pre-LN, sigma 0.01 to 0.1", difference("softmax", "pre", SMALL), 0.5),
        at_most(
            "difference of exponents with Pre-LN over that without, sigma 0.01 to 10",
            difference("softmax", "pre") / difference("softmax", None),
            0.5,
        ),
    )


def _curves() -> Curves:
    drawn = {}
    for norm in (None, "pre"):
        network = replace(PLAIN, norm=norm)
        for key, name in ((QUERY, "W_Q"), (VALUE, "W_V")):
            drawn[f"{name}, {'Pre-LN' if norm else 'no norm'}"] = (
                NORM_SIGMAS,
                tuple(mean_norms(network, NORM_SIGMAS, key, NORM_REPEATS)),
            )
    return Curves.log_log("standard deviation of the embeddings", "Frobenius norm", drawn)


@claim("P51")
def pre_norm_evens_growth() -> Finding:
    """Exponents with and without the norm."""
    return Finding(checks=smaller_with_norm(), curves=_curves())


@claim("A29")
def pre_norm_evens_growth_in_article() -> Finding:
    """The same measurement as P51."""
    return Finding(checks=smaller_with_norm(), curves=_curves())


@claim("A30")
def norm_against_softmax() -> Finding:
    """A norm that only fixes the scale, and the same norm with other activations."""
    kinds = ("softmax", "sigmoid", "linear")
    bare, normed, scaled = ({kind: exponents(kind, norm, SMALL) for kind in kinds} for norm in (None, "pre", "scale"))
    post = difference("softmax", "post", SMALL)
    shown = "; ".join(f"{kind}: ({fixed(bare[kind])}) without, ({fixed(normed[kind])}) with" for kind in kinds)
    return Finding(
        checks=(
            at_least("difference without norm, softmax", _apart(bare["softmax"]), 1),
            at_most("difference with Pre-LN, softmax", _apart(normed["softmax"]), 0.5),
            at_least("difference left by a division by the root mean square, softmax", _apart(scaled["softmax"]), 1),
            at_most("difference without norm and without softmax, linear", _apart(bare["linear"]), 1),
            at_most("difference without norm and without softmax, sigmoid", _apart(bare["sigmoid"]), 1),
        ),
        support=(
            at_most("difference left by a division by the root mean square, softmax", _apart(scaled["softmax"]), 0.5),
            at_least("difference without norm, sigmoid", _apart(bare["sigmoid"]), 3.5),
            at_most("difference with Pre-LN, sigmoid", _apart(normed["sigmoid"]), 0.5),
            at_least("powers removed from the query block, linear", bare["linear"][0] - normed["linear"][0], 5),
            at_least("difference with Post-LN, softmax", post, 2.5),
        ),
        example=f"exponents of (W_Q, W_V), d = 16, sigma 0.01 to 0.1, without and with Pre-LN: {shown}; softmax with "
        f"a division by the root mean square: ({fixed(scaled['softmax'])}).",
    )


def _apart(exponents: tuple[float, float]) -> float:
    return abs(exponents[0] - exponents[1])
