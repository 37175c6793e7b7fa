"""How blocks of a GPT-2-like network grow with the scale of its embeddings (Figures 3a and 5)."""

from __future__ import annotations

from dataclasses import replace

from hessianlab.claims.definition import claim, first_seed, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close
from hessianlab.claims.networks import BLOCK, PUBLISHED, Network, growth, mean_norms, norms
from hessianlab.claims.quantities import largest, smallest
from hessianlens.network import functional, ggn
from hessianlens.spectra import frobenius

SMALL = (0.01, 0.03, 0.1, 0.3)
PRACTICAL = (*SMALL, 1.0)
LARGE = (2.0, 6.0)
REPEATS = 3
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


def _curves() -> Curves:
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
        curves=_curves(),
    )


@claim("P31")
def query_follows_the_fifth_power() -> Finding:
    """The prefactors of the two powers."""
    sigma = 0.01
    nets = [(replace(BLOCK, d_model=d), s) for d in (16, 32) for s in seeds(REPEATS)] + [(PUBLISHED, first_seed())]
    found = [norms(net, seed, sigma) for net, seed in nets]
    ratios = [n[0, "q", "ggn"] / n[0, "q", "functional"] for n in found]
    prefactors = [ratio / sigma for ratio in ratios]
    follows = close(
        "exponent of the full query block, sigma 0.01 to 0.3", growth(BLOCK, SMALL, (0, "q", "full"), 3), 5, 0.2
    )
    return Finding(
        checks=(follows, at_most("largest c6 / c5 (non-data factors)", prefactors, 0.1)),
        conditional=(
            follows,
            at_least("exponent of the outer product in the query block", growth(BLOCK, SMALL, (0, "q", "ggn"), 3), 5.8),
        ),
        support=(
            at_least("smallest c6 / c5", prefactors, 0.1),
            at_most("largest c6 / c5", prefactors, 10),
            at_most("largest |H_o| / |H_f| at sigma = 0.01", ratios, 0.1),
        ),
        example=f"d = {nets[0][0].d_model}, seed {nets[0][1]}: |H_o| = {found[0][0, 'q', 'ggn'] / sigma**6:.3g} "
        f"sigma^6 and |H_f| = {found[0][0, 'q', 'functional'] / sigma**5:.3g} sigma^5; at sigma = 0.01 their ratio is "
        f"{ratios[0]:.2g}, of which {prefactors[0]:.2g} is non-data and 0.01 is sigma.",
        told={"low": 1 / largest(prefactors), "high": 1 / smallest(prefactors)},
    )


def _value_functional(network: Network) -> float:
    """Largest relative size of the functional value block, by products alone: no closed form is used."""
    found = []
    for seed in seeds(REPEATS):
        at = network.problem(seed)
        block = "layer0.attn.v"
        parts = [frobenius(op(at, block, method="products"), probes=4, seed=seed).value for op in (functional, ggn)]
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
