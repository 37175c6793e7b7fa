"""Exponents of growth with the data, in one layer and in a network."""

from __future__ import annotations

import math
from dataclasses import replace

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.networks import BLOCK, PUBLISHED, Network, growth, mean_norms, norms
from hessianlab.claims.quantities import block_norm, largest, slope, smallest, value_functional_checks
from hessianlab.claims.samples import Sample, described, holding, samples_of
from hessianlens.layer import AttentionHessian
from hessianlens.network import functional, ggn
from hessianlens.spectra import frobenius

SMALL = (1e-3, 3e-3, 1e-2)
WIDE = (0.01, 0.1, 1.0, 3.0, 10.0, 100.0)
SHAPES = ((5, 3, 2), (6, 4, 4), (4, 2, 3))
OUTER = {"QQ": 6, "QK": 6, "KK": 6, "VQ": 4, "VK": 4, "VV": 2}
FUNCTIONAL = {"QQ": 5, "QK": 3, "KK": 5, "VQ": 3, "VK": 3}


def at_scale(one: Sample, sigma: float) -> AttentionHessian:
    """Tokens times sigma; weights, loss gradient and curvature held."""
    return one.held(X=sigma * one.X)


@measured
def growth_samples() -> tuple[Sample, ...]:
    """Three seeds of three shapes with at least four tokens: a uniform row of two has no third moment."""
    return samples_of(SHAPES, 3)


@measured
def block_norms() -> dict[tuple[str, str], list[tuple[float, ...]]]:
    """Norms by part and block, for every sample over the scales SMALL + WIDE."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for one in growth_samples():
        hessians = [at_scale(one, s) for s in (*SMALL, *WIDE)]
        for part, blocks in (("outer", OUTER), ("functional", FUNCTIONAL)):
            for block in blocks:
                row = tuple(block_norm(H, part, block) for H in hessians)
                found.setdefault((part, block), []).append(row)
    return found


def slope_checks(part: str, exponents: dict[str, int]) -> tuple[Check, ...]:
    """The slope farthest from the exponent, for every block."""
    checks = []
    for block, exponent in exponents.items():
        slopes = [slope(SMALL, row[: len(SMALL)]) for row in block_norms()[part, block]]
        checks.append(close(f"{part} {block}, farthest slope of {len(slopes)} layers", slopes, exponent, 0.05))
    return tuple(checks)


def bound_check(part: str, block: str, exponents: tuple[int, ...]) -> Check:
    """Norm over the sum of the powers of the scale, at every scale, over the constant of the bound."""
    worst = 0.0
    for one, row in zip(growth_samples(), block_norms()[part, block], strict=True):
        for sigma, norm in zip(WIDE, row[len(SMALL) :], strict=True):
            worst = max(worst, norm / (_constant(one, part, block) * sum(sigma**e for e in exponents)))
    powers = " + ".join(f"sigma^{e}" for e in exponents)
    return at_most(f"{part} {block} over its bound in {powers}, scales 0.01 to 100, largest", worst, 1.0)


def _constant(one: Sample, part: str, block: str) -> float:
    """A constant from norms alone: attention rows sum to 1, so |J_i| <= 1/2 and |D_i(w)| <= 3 max |w|.

    Written for tokens of scale one; every factor X carries one power of sigma.
    """
    L, d, k = one.shape
    X, factor = float(one.X.norm()), 2 / one.Y.numel()
    w = {n: float(v.norm()) for n, v in one.weights.items()}
    g, s = factor * float(one.Y.norm()), math.sqrt(k)
    side = {
        "Q": math.sqrt(L) * X**3 * w["V"] * w["K"] / (2 * s),
        "K": math.sqrt(L) * X**3 * w["V"] * w["Q"] / (2 * s),
        "V": math.sqrt(L * d) * X,
    }
    if part == "outer":
        return factor * side[block[0]] * side[block[1]]
    if block[0] == "V":
        return g * X**3 * math.sqrt(L) * (w["K"] if block[1] == "Q" else w["Q"]) / s
    pairs = {"QQ": w["K"] ** 2, "KK": w["Q"] ** 2, "QK": w["Q"] * w["K"]}
    through_curvature = 3 * math.sqrt(L) * g * w["V"] * X**5 * pairs[block] / s**2
    return through_curvature + (math.sqrt(k * L) * g * w["V"] * X**3 / s if block == "QK" else 0.0)


def _curves(part: str, blocks: tuple[str, ...]) -> Curves:
    curves = {block: (WIDE, block_norms()[part, block][0][len(SMALL) :]) for block in blocks}
    return Curves.log_log("scale of the tokens", "Frobenius norm", curves)


@claim("P25")
def outer_exponents() -> Finding:
    """Slopes at small scale, and the bound at any scale."""
    bounds = tuple(bound_check("outer", block, (e,)) for block, e in OUTER.items())
    return Finding(checks=(*slope_checks("outer", OUTER), *bounds), curves=_curves("outer", ("QQ", "VQ", "VV")))


@claim("P26")
def functional_exponents() -> Finding:
    """Slopes at small scale, and the bound at any scale."""
    without = [slope(SMALL, [_softmax_part(at_scale(one, s)) for s in SMALL]) for one in growth_samples()]
    powers = {"QK": (5, 3)}
    bounds = tuple(bound_check("functional", b, powers.get(b, (e,))) for b, e in FUNCTIONAL.items())
    return Finding(
        checks=(
            *slope_checks("functional", FUNCTIONAL),
            close("QK without its T-functional term, slope farthest from 5", without, 5, 0.05),
            *bounds,
        ),
        curves=_curves("functional", ("QQ", "QK", "VQ")),
    )


def _softmax_part(H: AttentionHessian) -> float:
    """Norm of functional QK without its T-functional term."""
    return float((H.functional["Q", "K"].to_dense() - H.t_functional["Q", "K"].to_dense()).norm())


@claim("P27")
def functional_value_block_order() -> Finding:
    """The block is zero, so that any order is an upper bound."""
    entries = [
        float(replace(one, X=sigma * one.X).by_autograd.block("functional", "V", "V").abs().max())
        for one in growth_samples()
        for sigma in WIDE
    ]
    return Finding(
        checks=(at_most("largest entry of H_f(V,V), token scales 0.01 to 100", entries, 1.0),),
        support=value_functional_checks(),
        example=f"L = 5, d_V = 3, d_K = 2, random residual, tokens of scale 0.01 to 100: the largest entry of H_f(V,V)"
        f" is {largest(entries):g}.",
    )


@claim("P28")
def jacobian_exponents() -> Finding:
    """A linear and two cubic Jacobians."""
    exponents = {"V": 1, "Q": 3, "K": 3}
    slopes: dict[str, list[float]] = {n: [] for n in exponents}
    ratios: dict[str, list[float]] = {n: [] for n in exponents}
    for one in growth_samples():
        rows = {s: _jacobian_norms(one, s) for s in (*SMALL, 1.0, 10.0, 100.0)}
        constants = _jacobian_constants(one)
        for name, e in exponents.items():
            slopes[name].append(slope(SMALL, [rows[s][name] for s in SMALL]))
            ratios[name] += [row[name] / (constants[name] * s**e) for s, row in rows.items()]
    return Finding(
        checks=(
            *(close(f"dF/dW_{n}, slope farthest from {e}", slopes[n], e, 0.05) for n, e in exponents.items()),
            *(at_most(f"dF/dW_{n} over its bound, largest", ratios[n], 1.0) for n in exponents),
        )
    )


def _jacobian_norms(one: Sample, sigma: float) -> dict[str, float]:
    by_autograd = Sample(sigma * one.X, one.Y, one.weights).by_autograd
    return {n: float(by_autograd.jacobian[:, by_autograd.place(n)].norm()) for n in one.weights}


def _jacobian_constants(one: Sample) -> dict[str, float]:
    L, d, k = one.shape
    w, X = {n: float(v.norm()) for n, v in one.weights.items()}, float(one.X.norm())
    cubic = {n: math.sqrt(L) * X**3 * w["V"] * w[m] / (2 * math.sqrt(k)) for n, m in (("Q", "K"), ("K", "Q"))}
    return {"V": math.sqrt(L * d) * X, **cubic}


@claim("P29")
def dominance_for_large_tokens() -> Finding:
    """The powers alone say so; the softmax saturates and says otherwise for the query block."""
    live = [_ratio(at_scale(one, 30.0)) for one in growth_samples()]
    held = {s: [_ratio(_held(one, s)) for one in growth_samples()] for s in (1.0, 10.0, 100.0)}
    powers = [slope((1.0, 10.0, 100.0), [held[s][i] for s in held]) for i in range(len(growth_samples()))]
    one, at = _example()
    query = [block_norm(at, p, "QQ") for p in ("outer", "functional")]
    whole = share("layers whose whole outer part is the larger", sum(map(_whole, growth_samples())), len(live), 0.9)
    return Finding(
        checks=(whole, share("layers whose outer query block is the larger", sum(r > 1 for r in live), len(live), 0.9)),
        conditional=(
            whole,
            at_least("query block, attention held, outer over functional at scale 100, smallest", held[100.0], 1),
            close("power of the scale in that ratio, farthest from 1", powers, 1, 0.05),
        ),
        support=(share("layers whose functional query block is the larger", sum(r < 1 for r in live), len(live), 0.5),),
        example=f"{described(one)}, the residual held at Y, tokens times 10: the outer query block is {query[0]:.2g},"
        f" the functional one {query[1]:.2g} in size.",
        curves=_ratio_curves(),
    )


def _ratio(H: AttentionHessian) -> float:
    outer, functional = (block_norm(H, p, "QQ") for p in ("outer", "functional"))
    return outer / functional if functional > 0 else math.nan


def _held(one: Sample, sigma: float) -> AttentionHessian:
    X = sigma * one.X
    return one.held(holding(one.layer, X, one.setting.A), X)


def _whole(one: Sample) -> bool:
    H = at_scale(one, 30.0)
    return block_norm(H, "outer") > block_norm(H, "functional")


def _example() -> tuple[Sample, AttentionHessian]:
    """The layer of two scalar tokens whose functional query block is largest among those it dominates tenfold."""
    candidates = [(one, at_scale(one, 10.0)) for one in samples_of([(2, 1, 1)], 50)]
    return max(
        (pair for pair in candidates if _ratio(pair[1]) < 0.1), key=lambda pair: block_norm(pair[1], "functional", "QQ")
    )


def _ratio_curves() -> Curves:
    scales = WIDE[:-1]
    return Curves.log_log(
        "scale of the tokens",
        "outer over functional norm, query block",
        {
            "softmax": (scales, tuple(_ratio(at_scale(growth_samples()[0], s)) for s in scales)),
            "attention held": (scales, tuple(_ratio(_held(growth_samples()[0], s)) for s in scales)),
        },
    )


SMALL_SIGMAS = (0.01, 0.03, 0.1, 0.3)
PRACTICAL = (*SMALL_SIGMAS, 1.0)
LARGE = (2.0, 6.0)
REPEATS = 3
TINY = 0.01
"""Scale of the tokens at which the prefactors of the powers are read off."""
PREDICTED = {(0, "q", "ggn"): 6.0, (0, "q", "functional"): 5.0, (0, "q", "full"): 5.0, (0, "v", "full"): 2.0}
"""Equation (5) for the blocks of Figure 3a; the full query block follows the smaller power."""

_LABELS = {"ggn": "outer product", "functional": "functional", "full": "full"}


def _exponents(network: Network, sigmas: tuple[float, ...], repeats: int, within: float) -> tuple[Check, ...]:
    where = f"d = {network.d_model}, sigma {sigmas[0]:g} to {sigmas[-1]:g}, {repeats} seed{'s' if repeats > 1 else ''}"
    return tuple(
        close(
            f"exponent of W_{key[1].upper()} {_LABELS[key[2]]}, {where}",
            growth(network, sigmas, key, repeats),
            p,
            within,
        )
        for key, p in PREDICTED.items()
    )


def _network_curves() -> Curves:
    sigmas = (*PRACTICAL, *LARGE)
    drawn = {
        f"W_{key[1].upper()} {_LABELS[key[2]]}": (sigmas, tuple(mean_norms(BLOCK, sigmas, key, REPEATS)))
        for key in PREDICTED
        if key != (0, "q", "full")
    }
    return Curves.log_log("standard deviation of the embeddings", "Frobenius norm", drawn)


@claim("P30")
def rates_carry_over() -> Finding:
    """Exponents below and beyond saturation."""
    small = _exponents(BLOCK, PRACTICAL, REPEATS, 0.2) + _exponents(PUBLISHED, (0.01, 0.3, 1.0), 1, 0.2)
    large = _exponents(BLOCK, LARGE, REPEATS, 0.2)
    found = {key: growth(BLOCK, LARGE, key, REPEATS) for key in PREDICTED}
    shown = ", ".join(f"W_{k[1].upper()} {_LABELS[k[2]]} {found[k]:.2f} instead of {p:g}" for k, p in PREDICTED.items())
    return Finding(
        checks=small + large,
        conditional=small,
        support=(at_most("exponent of W_Q outer product beyond sigma = 2, instead of 6", found[0, "q", "ggn"], 5.2),),
        example=f"d = 32, sigma from 2 to 6: {shown}.",
        curves=_network_curves(),
    )


def _parts_of_query_block() -> tuple[list[tuple[Network, int]], list[dict[tuple[int, str, str], float]]]:
    """Networks with their seeds, and the norms of their blocks at `TINY`."""
    nets = [(replace(BLOCK, d_model=d), s) for d in (16, 32) for s in seeds(REPEATS)] + [(PUBLISHED, first_seed())]
    return nets, [norms(net, seed, TINY) for net, seed in nets]


@claim("P31")
def query_follows_the_fifth_power() -> Finding:
    """Below the scale where both powers are of one size, and beyond it."""
    nets, found = _parts_of_query_block()
    ratios = [n[0, "q", "ggn"] / n[0, "q", "functional"] for n in found]
    follows = close(
        "exponent of the full query block, sigma 0.01 to 0.3", growth(BLOCK, SMALL_SIGMAS, (0, "q", "full"), 3), 5, 0.2
    )
    beyond = growth(BLOCK, LARGE, (0, "q", "full"), REPEATS)
    return Finding(
        checks=(follows, close("exponent of the full query block, sigma 2 to 6", beyond, 5, 0.2)),
        conditional=(
            follows,
            at_least(
                "exponent of the outer product in the query block", growth(BLOCK, SMALL_SIGMAS, (0, "q", "ggn"), 3), 5.8
            ),
        ),
        support=(at_most("largest |H_o| / |H_f| at sigma = 0.01", ratios, 0.1),),
        example=f"d = {nets[0][0].d_model}, seed {nets[0][1]}: at sigma = 0.01 the functional part is "
        f"{1 / ratios[0]:.2g} times the outer product, which one more power of sigma overtakes at sigma = "
        f"{TINY / ratios[0]:.2g}.",
        numbers={"low": TINY / largest(ratios), "high": TINY / smallest(ratios), "beyond": beyond},
    )


@claim("P77")
def sixth_power_is_suppressed() -> Finding:
    """The prefactors of the two powers."""
    nets, found = _parts_of_query_block()
    ratios = [n[0, "q", "ggn"] / n[0, "q", "functional"] for n in found]
    prefactors = [ratio / TINY for ratio in ratios]
    return Finding(
        checks=(at_most("largest c6 / c5 (non-data factors)", prefactors, 0.1),),
        support=(at_least("smallest c6 / c5", prefactors, 0.1), at_most("largest c6 / c5", prefactors, 10)),
        example=f"d = {nets[0][0].d_model}, seed {nets[0][1]}: |H_o| = {found[0][0, 'q', 'ggn'] / TINY**6:.3g} "
        f"sigma^6 and |H_f| = {found[0][0, 'q', 'functional'] / TINY**5:.3g} sigma^5; at sigma = 0.01 their ratio is "
        f"{ratios[0]:.2g}, of which {prefactors[0]:.2g} is non-data and 0.01 is sigma.",
        numbers={"least": smallest(prefactors), "most": largest(prefactors)},
    )


def _value_functional(network: Network) -> float:
    """Largest relative size of the functional value block, by products alone: no closed form is used."""
    found = []
    for seed in seeds(REPEATS):
        at = network.problem(seed)
        block = "layer0.attn.v"
        parts = [frobenius(op(at, block, method="hvp"), probes=4, seed=seed).value for op in (functional, ggn)]
        found.append(parts[0] / parts[1])
    return largest(found)


@claim("P32")
def value_functional_in_network() -> Finding:
    """ReLU without norm, GELU, and Pre-LN."""
    variants = {
        "ReLU, no norm": BLOCK,
        "GELU, no norm": replace(BLOCK, mlp_activation="gelu"),
        "ReLU, Pre-LN": replace(BLOCK, norm="pre"),
    }
    sizes = {name: _value_functional(network) for name, network in variants.items()}
    checks = {name: at_most(f"|H_f(V,V)| / |H_o(V,V)|, {name}", size, 1e-12) for name, size in sizes.items()}
    return Finding(
        checks=(checks["ReLU, no norm"], checks["GELU, no norm"]),
        conditional=(checks["ReLU, no norm"],),
        support=tuple(
            at_least(f"|H_f(V,V)| / |H_o(V,V)|, {name}", sizes[name], 1e-3)
            for name in ("GELU, no norm", "ReLU, Pre-LN")
        ),
        example="one block, d = 32: " + ", ".join(f"{name}: {size:.2g}" for name, size in sizes.items()) + ".",
    )
