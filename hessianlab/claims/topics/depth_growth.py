"""Blocks of several layers: growth with the scale of the embeddings, layer by layer (Figures 6 and 7)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.networks import BLOCK, Network, growth, mean_norms, norms
from hessianlab.claims.quantities import largest, smallest
from hessianlab.claims.samples import fixed

SMALL = (0.01, 0.03, 0.1)
PRACTICAL = (0.1, 0.3, 1.0)
REPEATS = 4
DEPTHS = (2, 3)
PREDICTED = {("q", "ggn"): 6.0, ("q", "functional"): 5.0, ("v", "ggn"): 2.0}
"""Equation (5) for the series of Figure 6 that the paper predicts."""

LABELS = {"ggn": "outer product", "functional": "functional", "full": "full"}


def deep(layers: int) -> Network:
    """A GPT-2-like network of several blocks, d = 16."""
    return Network(layers=layers, d_model=16)


def _deviation(sigmas: tuple[float, ...], block: str, part: str) -> float:
    """Largest distance of an exponent from its prediction, over depths and layers."""
    return largest(
        abs(growth(deep(layers), sigmas, (layer, block, part), REPEATS) - PREDICTED[block, part])
        for layers in DEPTHS
        for layer in range(layers)
    )


def _deviations(sigmas: tuple[float, ...], within: float) -> tuple[Check, ...]:
    where = f"sigma {sigmas[0]:g} to {sigmas[-1]:g}, every layer of 2 and 3, {REPEATS} seeds, d = 16"
    return tuple(
        at_most(
            f"W_{b.upper()} {LABELS[p]}: largest distance from exponent {e:g}, {where}",
            _deviation(sigmas, b, p),
            within,
        )
        for (b, p), e in PREDICTED.items()
    )


@claim("P58")
def layers_follow_rates() -> Finding:
    """Exponents of every layer."""
    small = _deviations(SMALL, 0.2)
    near_one = {layers: growth(deep(layers), (0.3, 1.0), (0, "q", "functional"), REPEATS) for layers in DEPTHS}
    return Finding(
        checks=small + _deviations(PRACTICAL, 0.2),
        conditional=small,
        support=(
            at_least(
                "smallest exponent of the input layer's functional query block, sigma 0.3 to 1", near_one.values(), 5.2
            ),
        ),
        example="exponent of the input layer's functional query block between sigma = 0.3 and 1: "
        + ", ".join(f"{e:.2f} with {layers} layers" for layers, e in near_one.items())
        + ", predicted 5.",
    )


@claim("P59")
def earlier_layers_lower() -> Finding:
    """Every layer against the next."""
    sigmas = (*SMALL, 0.3)
    pairs = [
        lower < upper
        for layers in DEPTHS
        for layer in range(layers - 1)
        for block, part in PREDICTED
        for lower, upper in zip(
            mean_norms(deep(layers), sigmas, (layer, block, part), REPEATS),
            mean_norms(deep(layers), sigmas, (layer + 1, block, part), REPEATS),
            strict=True,
        )
    ]
    relative = {
        (layers, layer): [_value_functional(layers, layer, seed) for seed in seeds(REPEATS)]
        for layers in DEPTHS
        for layer in range(layers)
    }
    top = [size for (layers, layer), sizes in relative.items() if layer == layers - 1 for size in sizes]
    below = [size for (layers, layer), sizes in relative.items() if layer < layers - 1 for size in sizes]
    return Finding(
        checks=(
            share("mean norms below those of the next layer", sum(pairs), len(pairs), 0.9),
            at_most("largest |H_f(V,V)| / |H_o(V,V)| in the last layer, sigma = 0.1", top, 1e-12),
            at_least("smallest |H_f(V,V)| / |H_o(V,V)| in the layers below", below, 1e-6),
        )
    )


def _value_functional(layers: int, layer: int, seed: int) -> float:
    found = norms(deep(layers), seed, 0.1)
    return found[layer, "v", "functional"] / found[layer, "v", "ggn"]


@claim("P60")
def depth_beyond_one() -> Finding:
    """Exponents of the input and the top layer for large embeddings."""
    nets = [replace(BLOCK, layers=layers) for layers in (1, 2, 3)]
    near = {block: [growth(n, (1.0, 2.0), (0, block, "full"), REPEATS) for n in nets] for block in "qv"}
    far = {block: [growth(n, (2.0, 6.0), (0, block, "full"), REPEATS) for n in nets] for block in "qv"}
    query, value = (
        [growth(n, (1.0, 6.0), (n.layers - 1, *key), REPEATS) for n in nets[1:]]
        for key in (("q", "full"), ("v", "ggn"))
    )
    rising = tuple(
        at_least(f"smallest rise of the exponent of W_{b.upper()} a further layer, sigma 1 to 2", _rise(near[b]), 0.3)
        for b in "qv"
    )
    return Finding(
        checks=(
            *rising,
            *(
                at_least(
                    f"smallest rise of the exponent of W_{b.upper()} a further layer, sigma 2 to 6", _rise(far[b]), 0.3
                )
                for b in "qv"
            ),
            *(
                close(f"exponent of the top layer's {name}, {layers} layers, sigma 1 to 6", found, predicted, 0.5)
                for name, exponents, predicted in (("full query block", query, 5), ("outer value block", value, 2))
                for layers, found in zip((2, 3), exponents, strict=True)
            ),
        ),
        conditional=rising,
        support=(
            at_most("largest exponent of the top layer's full query block, sigma 1 to 6", query, 4.5),
            at_most("largest exponent of the top layer's outer value block, sigma 1 to 6", value, 1.7),
            at_most(
                "exponent of the input layer's W_Q, 2 layers, sigma 1 to 2 (linear attention: 18)", near["q"][1], 12
            ),
        ),
        example=f"input layer, 1, 2, 3 blocks: W_Q {fixed(near['q'])} over sigma 1 to 2, {fixed(far['q'])} over 2 "
        f"to 6; W_V {fixed(near['v'])} and {fixed(far['v'])}. Top layer, sigma 1 to 6, 2 and 3 blocks: full W_Q "
        f"{fixed(query)} (predicted 5), outer W_V {fixed(value)} (predicted 2).",
    )


def _rise(exponents: list[float]) -> float:
    return smallest(b - a for a, b in pairwise(exponents))


@claim("A28")
def linear_stack() -> Finding:
    """Outer product and full blocks of linear stacks."""
    sigmas, repeats = (0.02, 0.05, 0.1), 2
    nets = {depth: Network(layers=depth, d_model=16, stack=True) for depth in DEPTHS}

    def exponents(part: str, depth: int, layers: range) -> list[float]:
        return [growth(nets[depth], sigmas, (layer, b, part), repeats) for layer in layers for b in "qv"]

    def matches(part: str, depth: int, layers: range, name: str) -> Check:
        wanted = 2.0 * 3**depth
        worst = max(exponents(part, depth, layers), key=lambda e: abs(e - wanted))
        return close(f"exponent farthest from the claim, {name}, D = {depth}", worst, wanted, 0.5)

    outer = tuple(matches("ggn", d, range(d), "outer product, every layer") for d in DEPTHS)
    last = tuple(matches("full", d, range(d - 1, d), "full block, last layer") for d in DEPTHS)
    below = {d: exponents("full", d, range(d - 1)) for d in DEPTHS}
    return Finding(
        checks=outer + last + tuple(matches("full", d, range(d - 1), "full block, layers below") for d in DEPTHS),
        conditional=outer + last,
        support=(
            close(
                "mean exponent of the full blocks below the last layer, D = 2", sum(below[2]) / len(below[2]), 9, 0.5
            ),
            close(
                "mean exponent of the full blocks below the last layer, D = 3", sum(below[3]) / len(below[3]), 27, 0.5
            ),
            close(
                "exponent of the input layer's full query block, D = 2, sigma 1 to 2",
                growth(nets[2], (1.0, 2.0), (0, "q", "full"), repeats),
                18,
                0.5,
            ),
        ),
        example=f"D = 2, input layer, sigma 0.02 to 0.1: full query block {below[2][0]:.1f}, its outer product "
        f"{exponents('ggn', 2, range(1))[0]:.1f}.",
        curves=_stack_curves(nets[2], repeats),
    )


def _stack_curves(network: Network, repeats: int) -> Curves:
    sigmas = (0.02, 0.05, 0.1, 0.3, 1.0)
    drawn = {
        f"layer {layer + 1}, {LABELS[part]}": (sigmas, tuple(mean_norms(network, sigmas, (layer, "q", part), repeats)))
        for layer in range(network.layers)
        for part in ("ggn", "full")
    }
    return Curves.log_log("standard deviation of the embeddings", "|block of W_Q|, D = 2", drawn)
