"""Depth: growth in stacks of attention layers, with skip connections and without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Check, Curves, Finding, at_least, at_most, close, share
from hessianlab.claims.networks import BLOCK, Network, growth, mean_norms, norms
from hessianlab.claims.quantities import largest, smallest
from hessianlab.claims.samples import DenseHessians, Weights, fixed, mean_square, normal

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
    """Exponents of the input layer for large embeddings."""
    nets = [replace(BLOCK, layers=layers) for layers in (1, 2, 3)]
    near = {block: [growth(n, (1.0, 2.0), (0, block, "full"), REPEATS) for n in nets] for block in "qv"}
    far = {block: [growth(n, (2.0, 6.0), (0, block, "full"), REPEATS) for n in nets] for block in "qv"}
    rising, beyond = (
        tuple(
            at_least(f"smallest rise of the exponent of W_{b.upper()} a further layer, {over}", _rise(found[b]), 0.3)
            for b in "qv"
        )
        for found, over in ((near, "sigma 1 to 2"), (far, "sigma 2 to 6"))
    )
    return Finding(
        checks=(*rising, *beyond),
        conditional=rising,
        support=(
            at_most(
                "exponent of the input layer's W_Q, 2 layers, sigma 1 to 2 (linear attention: 18)", near["q"][1], 12
            ),
        ),
        example=f"input layer, 1, 2, 3 blocks: W_Q {fixed(near['q'])} over sigma 1 to 2, {fixed(far['q'])} over 2 "
        f"to 6; W_V {fixed(near['v'])} and {fixed(far['v'])}.",
    )


@claim("P78")
def top_layer_beyond_one() -> Finding:
    """Exponents of the top layer for large embeddings."""
    nets = [replace(BLOCK, layers=layers) for layers in DEPTHS]
    query, value = (
        [growth(n, (1.0, 6.0), (n.layers - 1, *key), REPEATS) for n in nets] for key in (("q", "full"), ("v", "ggn"))
    )
    return Finding(
        checks=tuple(
            close(f"exponent of the top layer's {name}, {layers} layers, sigma 1 to 6", found, predicted, 0.5)
            for name, exponents, predicted in (("full query block", query, 5), ("outer value block", value, 2))
            for layers, found in zip(DEPTHS, exponents, strict=True)
        ),
        support=(
            at_most("largest exponent of the top layer's full query block, sigma 1 to 6", query, 4.5),
            at_most("largest exponent of the top layer's outer value block, sigma 1 to 6", value, 1.7),
        ),
        example=f"top layer, sigma 1 to 6, 2 and 3 blocks: full W_Q {fixed(query)} (predicted 5), outer W_V "
        f"{fixed(value)} (predicted 2).",
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


L, WIDTH = 3, 2
LINEAR_DEPTHS = (1, 2, 3)
SMALL_SCALE, LARGE = 0.03, 30.0
"""Scales of the tokens; the target has scale one."""


def _stack_weights(seed: int, depth: int) -> Weights:
    names = [f"{name}{layer}" for layer in range(depth) for name in "QKV"]
    return {n: normal(100 * seed + i, WIDTH, WIDTH) / math.sqrt(WIDTH) for i, n in enumerate(names)}


def _stack(X: Tensor, w: Weights, depth: int) -> Tensor:
    """Linear self-attention chained: x <- x W_Q W_K^T x^T x W_V / sqrt(d_K)."""
    for layer in range(depth):
        q, k, v = (w[f"{name}{layer}"] for name in "QKV")
        X = X @ q @ k.T @ X.T @ X @ v / math.sqrt(WIDTH)
    return X


def _attention_by_autograd(seed: int, depth: int, sigma: float, target: float) -> DenseHessians:
    X, Y = normal(seed + 70, L, WIDTH), target * normal(seed + 80, L, WIDTH)
    return DenseHessians(lambda w: _stack(sigma * X, w, depth), _stack_weights(seed, depth), mean_square(Y))


def _degrees(depth: int, part: str, target: float, scale: float) -> dict[str, list[float]]:
    """log2 of what doubling the tokens does to the diagonal blocks, by weight, over seeds."""
    found: dict[str, list[float]] = {}
    for seed in seeds(3):
        low, high = (_attention_by_autograd(seed, depth, s, target) for s in (scale, 2 * scale))
        for name in low.weights:
            ratio = high.block(part, name, name).norm() / low.block(part, name, name).norm()
            found.setdefault(name, []).append(float(torch.log2(ratio)))
    return found


@claim("P46")
def degree_of_stacked_attention() -> Finding:
    """The stated degree; at small scale lower layers have a functional part of half that degree."""
    small = {d: _degrees(d, "full", 1.0, SMALL_SCALE) for d in LINEAR_DEPTHS}
    large = {d: _degrees(d, "full", 1.0, LARGE) for d in LINEAR_DEPTHS}
    outer = {d: _degrees(d, "outer", 1.0, SMALL_SCALE) for d in LINEAR_DEPTHS}

    def degrees(found: dict[int, dict[str, list[float]]], depth: int, layer: str = "") -> list[float]:
        return [v for name, row in found[depth].items() if name.endswith(layer) for v in row]

    first = small[2]["Q0"]
    return Finding(
        checks=tuple(
            close(f"degree of the {what}, D = {d}, farthest", values, 2 * 3**d, 1e-3)
            for d in LINEAR_DEPTHS
            for what, values in (
                ("outer blocks", degrees(outer, d)),
                ("full blocks of the last layer", degrees(small, d, str(d - 1))),
                (f"full blocks at scale {LARGE:g}", degrees(large, d)),
            )
        ),
        support=(
            close(f"D = 2, degree of the full first query block at scale {SMALL_SCALE:g}, farthest", first, 9, 0.05),
        ),
        example=f"D = 2, L = {L}, d_V = d_K = {WIDTH}: doubling tokens of scale {SMALL_SCALE:g} multiplies the full"
        f" block of the first W_Q by 2^{first[0]:.2f}, its outer product by 2^{outer[2]['Q0'][0]:.2f}; at"
        f" scale {LARGE:g} the full block by 2^{large[2]['Q0'][0]:.2f}.",
        curves=_linear_stack_curves(),
    )


def _linear_stack_curves() -> Curves:
    scales = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    found = [_attention_by_autograd(first_seed(), 2, scale, 1.0) for scale in scales]
    drawn = {
        f"layer {layer + 1}, {name}": (
            scales,
            tuple(float(w.block(part, f"Q{layer}", f"Q{layer}").norm()) for w in found),
        )
        for layer in (0, 1)
        for part, name in (("outer", "outer product"), ("full", "full"))
    }
    return Curves.log_log("scale of the tokens", "norm of the W_Q block, D = 2", drawn)


def _mlp(X: Tensor, w: Weights, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """``... a(a(X W_1) W_2) ...``, the last layer linear."""
    for i, weight in enumerate(w.values()):
        X = (X if i == 0 else activation(X)) @ weight
    return X


def _mlp_by_autograd(
    seed: int, depth: int, activation: Callable[[Tensor], Tensor], sigma: float = 1.0
) -> DenseHessians:
    X, Y = normal(seed + 70, 5, 3), normal(seed + 80, 5, 3)
    weights = {str(i): normal(100 * seed + i, 3, 3) for i in range(depth)}
    return DenseHessians(lambda w: _mlp(sigma * X, w, activation), weights, mean_square(Y))


def _unchanged(x: Tensor) -> Tensor:
    return x


@claim("P47")
def degree_of_linear_mlps() -> Finding:
    """Jacobian linear in the input, no functional part on the diagonal."""
    checks = []
    for depth in range(1, 6):
        found = []
        for seed in seeds(3):
            low, high = (_mlp_by_autograd(seed, depth, _unchanged, s) for s in (1.0, 2.0))
            found += [
                float(torch.log2(high.block("full", n, n).norm() / low.block("full", n, n).norm())) for n in low.weights
            ]
        checks.append(close(f"degree of the diagonal blocks, depth {depth}, farthest", found, 2, 1e-9))
    return Finding(checks=tuple(checks))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": _unchanged,
    "ReLU": torch.relu,
    "leaky ReLU": lambda x: torch.where(x > 0, x, 0.1 * x),
    "squared ReLU": lambda x: torch.relu(x) ** 2,
}
PIECEWISE_LINEAR = ("linear", "ReLU", "leaky ReLU")


@measured
def _hollow_sizes() -> dict[str, float]:
    """Norm of a functional diagonal block over that of the functional Hessian, three-layer MLPs, by activation."""
    return {
        name: largest(
            float(w.block("functional", n, n).norm() / w.functional.norm())
            for w in (_mlp_by_autograd(seed, 3, activation) for seed in seeds(5))
            for n in w.weights
        )
        for name, activation in ACTIVATIONS.items()
    }


@claim("P48")
def hollow_mlps() -> Finding:
    """Zero where the non-linearity is piecewise linear."""
    found = _hollow_sizes()
    checks = {n: at_most(f"{n}: largest share of a functional diagonal block", v, 0.0) for n, v in found.items()}
    scalar = _scalar_example()
    return Finding(
        checks=tuple(checks.values()),
        conditional=tuple(checks[n] for n in PIECEWISE_LINEAR),
        support=(at_least("squared ReLU: largest share of a functional diagonal block", found["squared ReLU"], 1e-3),),
        example="F = relu(x W_1)^2 W_2 with x = W_1 = W_2 = 1 and target 0: the functional Hessian of W_1 is"
        f" {scalar:g}; with relu(x W_1) W_2 it is 0.",
    )


def _scalar_example() -> float:
    one = torch.ones(1, 1, dtype=torch.float64)
    by_autograd = DenseHessians(
        lambda w: torch.relu(one @ w["1"]) ** 2 @ w["2"], {"1": one, "2": one}, mean_square(0 * one)
    )
    return float(by_autograd.block("functional", "1", "1"))
