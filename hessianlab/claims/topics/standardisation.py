"""Explosion of the Hessian with depth when tokens are not standardised, and the place of the layer norm."""

from __future__ import annotations

import math

from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Check, Finding, at_least, at_most, close
from hessianlab.claims.networks import Network, growth
from hessianlab.claims.quantities import farthest, median, smallest
from hessianlab.claims.samples import (
    DenseHessians,
    Weights,
    attention_output,
    fixed,
    mean_square,
    normal,
    softmax_rows,
)

DEPTHS = (1, 2, 3)
LENGTH, WIDTH = 4, 3
SMALL, LARGE = 0.02, 30.0
"""Scales of the tokens, each compared with its double; the target has scale one."""

CHAIN, LINEAR_SKIP, SOFTMAX_SKIP = "linear attention", "linear attention, skips", "softmax attention, skips"
SOFTMAX_CHAIN, MLP = "softmax attention, no skips", "linear MLP"


def _unchanged(T: Tensor) -> Tensor:
    return T


def _network(kind: str, seed: int, depth: int, scale: float) -> DenseHessians:
    """Chained attention layers, with skip connections or without, or a linear MLP; square loss."""
    X, Y = scale * normal(seed + 70, LENGTH, WIDTH), normal(seed + 80, LENGTH, WIDTH)
    names = [str(i) for i in range(depth)] if kind == MLP else [f"{n}{i}" for i in range(depth) for n in "QKV"]
    weights = {n: normal(100 * seed + i, WIDTH, WIDTH) / math.sqrt(WIDTH) for i, n in enumerate(names)}
    activation = softmax_rows if kind in (SOFTMAX_SKIP, SOFTMAX_CHAIN) else _unchanged

    def output(w: Weights) -> Tensor:
        tokens = X
        for i in range(depth):
            if kind == MLP:
                tokens = tokens @ w[str(i)]
                continue
            attended = attention_output(tokens, {n: w[f"{n}{i}"] for n in "QKV"}, activation)
            tokens = tokens + attended if kind in (LINEAR_SKIP, SOFTMAX_SKIP) else attended
        return tokens

    return DenseHessians(output, weights, mean_square(Y))


def _powers(kind: str, depth: int, scale: float, weights: str = "") -> list[float]:
    """log2 of what doubling the tokens does to the outer diagonal blocks: of some weights, or of all."""
    found = []
    for seed in seeds(3):
        low, high = (_network(kind, seed, depth, s) for s in (scale, 2 * scale))
        for name in low.weights:
            if not weights or name[0] in weights:
                ratio = high.block("outer", name, name).norm() / low.block("outer", name, name).norm()
                found.append(float(ratio.log2()))
    return found


@measured
def _small_powers() -> dict[tuple[str, int], list[float]]:
    return {(kind, depth): _powers(kind, depth, SMALL) for kind in (CHAIN, SOFTMAX_SKIP, MLP) for depth in DEPTHS}


def _growing(kind: str) -> tuple[Check, ...]:
    """Powers that rise with every layer, each time by more, and exceed those of an MLP of this depth."""
    found = _small_powers()
    low = [smallest(found[kind, depth]) for depth in DEPTHS]
    return (
        at_least(f"{kind}: smallest power with 2 layers minus that with 1", low[1] - low[0], 1),
        at_least(f"{kind}: rise from 2 to 3 layers over that from 1 to 2", _ratio(low[2] - low[1], low[1] - low[0]), 2),
        at_least(
            f"{kind}: smallest power minus the largest of a {MLP} of equal depth",
            min(low[i] - max(found[MLP, depth]) for i, depth in enumerate(DEPTHS)),
            1,
        ),
    )


def _ratio(further: float, before: float) -> float:
    return further / before if abs(before) > 1e-2 else 0.0


@claim("P73")
def explosion_with_depth() -> Finding:
    """Powers of the tokens by depth; the derivation is for linear attention."""
    found = _small_powers()
    softmax = [found[SOFTMAX_SKIP, depth] for depth in DEPTHS]
    linear = _growing(CHAIN)
    query = [farthest(_powers(SOFTMAX_SKIP, d, SMALL, "QK"), 6) for d in DEPTHS]
    value = [farthest(_powers(SOFTMAX_SKIP, d, SMALL, "V"), 2) for d in DEPTHS]
    second = _powers(SOFTMAX_CHAIN, 2, SMALL, "Q")[1::2]
    return Finding(
        checks=(*linear, *_growing(SOFTMAX_SKIP)),
        conditional=linear,
        support=(
            close(f"{SOFTMAX_SKIP}: power in the query and key blocks at any depth, farthest", query, 6, 0.1),
            close(f"{SOFTMAX_SKIP}: power in the value blocks at any depth, farthest", value, 2, 0.1),
            close(f"{LINEAR_SKIP}: power with 3 layers, farthest", _powers(LINEAR_SKIP, 3, SMALL), 6, 0.2),
            close(
                f"{LINEAR_SKIP}: power with 3 layers, token scale {LARGE:g}", _powers(LINEAR_SKIP, 3, LARGE), 54, 0.5
            ),
            at_most(
                f"{SOFTMAX_SKIP}: power in the value blocks with 3 layers, token scale {LARGE:g}, median",
                median(_powers(SOFTMAX_SKIP, 3, LARGE, "V")),
                2.5,
            ),
            close(f"{SOFTMAX_CHAIN}: power in the second layer's query block, farthest", second, 14, 0.2),
        ),
        example=f"tokens doubled, smallest and largest power in a block with 1, 2, 3 layers: {CHAIN} "
        f"{_shown([found[CHAIN, d] for d in DEPTHS])}; {SOFTMAX_SKIP} {_shown(softmax)}; {MLP} "
        f"{_shown([found[MLP, d] for d in DEPTHS])}.",
    )


def _shown(powers: list[list[float]]) -> str:
    return ", ".join(f"{min(row):.0f} to {max(row):.0f}" for row in powers)


EMBEDDINGS = (0.01, 0.1)
REPEATS = 2
NORMS = {"pre": "Pre-LN", "post": "Post-LN"}


def _differences(norm: str) -> list[float]:
    """Exponent of the query block minus that of the value block, in either layer of a network of two blocks."""
    network = Network(layers=2, d_model=16, norm=norm)
    return [
        growth(network, EMBEDDINGS, (layer, "q", "full"), REPEATS)
        - growth(network, EMBEDDINGS, (layer, "v", "full"), REPEATS)
        for layer in range(2)
    ]


@claim("P74")
def place_of_the_norm() -> Finding:
    """Pre-LN and Post-LN, layer by layer."""
    found = {norm: _differences(norm) for norm in NORMS}
    pre = tuple(
        at_most(f"Pre-LN, layer {layer + 1}: difference of the exponents of W_Q and W_V", abs(apart), 0.75)
        for layer, apart in enumerate(found["pre"])
    )
    post = tuple(
        at_least(f"Post-LN, layer {layer + 1}: difference of the exponents of W_Q and W_V", abs(apart), 1)
        for layer, apart in enumerate(found["post"])
    )
    return Finding(
        checks=pre + post,
        conditional=(*pre, post[0]),
        support=(
            at_most("Post-LN, layer 2: difference of the exponents of W_Q and W_V", abs(found["post"][1]), 0.5),
            close("Post-LN, layer 1: difference of the exponents of W_Q and W_V", found["post"][0], 4, 0.3),
        ),
        example="exponent of W_Q minus that of W_V in layers 1 and 2, d = 16, sigma 0.01 to 0.1: "
        + "; ".join(f"{name} {fixed(found[norm])}" for norm, name in NORMS.items())
        + ".",
    )
