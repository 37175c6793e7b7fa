"""Depth: stacks of linear attention against linear MLPs, and where MLPs have no functional part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed, measured, seeds
from hessianlab.claims.finding import Curves, Finding, at_least, at_most, close
from hessianlab.claims.quantities import largest
from hessianlab.claims.samples import Weights, Witness, mean_square, normal

L, WIDTH = 3, 2
DEPTHS = (1, 2, 3)
SMALL, LARGE = 0.03, 30.0
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


def _attention_witness(seed: int, depth: int, sigma: float, target: float) -> Witness:
    X, Y = normal(seed + 70, L, WIDTH), target * normal(seed + 80, L, WIDTH)
    return Witness(lambda w: _stack(sigma * X, w, depth), _stack_weights(seed, depth), mean_square(Y))


def _degrees(depth: int, part: str, target: float, scale: float) -> dict[str, list[float]]:
    """log2 of what doubling the tokens does to the diagonal blocks, by weight, over seeds."""
    found: dict[str, list[float]] = {}
    for seed in seeds(3):
        low, high = (_attention_witness(seed, depth, s, target) for s in (scale, 2 * scale))
        for name in low.weights:
            ratio = high.block(part, name, name).norm() / low.block(part, name, name).norm()
            found.setdefault(name, []).append(float(torch.log2(ratio)))
    return found


def _farthest(values: list[float], wanted: float) -> float:
    return max(values, key=lambda v: abs(v - wanted))


@claim("P46")
def degree_of_stacked_attention() -> Finding:
    """The stated degree; at small scale lower layers have a functional part of half that degree."""
    small = {d: _degrees(d, "full", 1.0, SMALL) for d in DEPTHS}
    large = {d: _degrees(d, "full", 1.0, LARGE) for d in DEPTHS}
    outer = {d: _degrees(d, "outer", 1.0, SMALL) for d in DEPTHS}

    def worst(found: dict[int, dict[str, list[float]]], depth: int, layer: str = "") -> float:
        values = [v for name, row in found[depth].items() if name.endswith(layer) for v in row]
        return _farthest(values, 2 * 3**depth)

    first = small[2]["Q0"]
    return Finding(
        checks=tuple(
            close(f"degree of the {what}, D = {d}, farthest", value, 2 * 3**d, 1e-3)
            for d in DEPTHS
            for what, value in (
                ("outer blocks", worst(outer, d)),
                ("full blocks of the last layer", worst(small, d, str(d - 1))),
                (f"full blocks at scale {LARGE:g}", worst(large, d)),
            )
        ),
        support=(
            close(
                f"D = 2, degree of the full first query block at scale {SMALL:g}, farthest",
                _farthest(first, 9),
                9,
                0.05,
            ),
        ),
        example=f"D = 2, L = {L}, d_V = d_K = {WIDTH}: doubling tokens of scale {SMALL:g} multiplies the full block of"
        f" the first W_Q by 2^{first[0]:.2f}, its outer product by 2^{outer[2]['Q0'][0]:.2f}; at scale {LARGE:g} the"
        f" full block by 2^{large[2]['Q0'][0]:.2f}.",
        curves=_stack_curves(),
    )


def _stack_curves() -> Curves:
    scales = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
    found = [_attention_witness(first_seed(), 2, scale, 1.0) for scale in scales]
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


def _mlp_witness(seed: int, depth: int, activation: Callable[[Tensor], Tensor], sigma: float = 1.0) -> Witness:
    X, Y = normal(seed + 70, 5, 3), normal(seed + 80, 5, 3)
    weights = {str(i): normal(100 * seed + i, 3, 3) for i in range(depth)}
    return Witness(lambda w: _mlp(sigma * X, w, activation), weights, mean_square(Y))


def _unchanged(x: Tensor) -> Tensor:
    return x


@claim("P47")
def degree_of_linear_mlps() -> Finding:
    """Jacobian linear in the input, no functional part on the diagonal."""
    checks = []
    for depth in range(1, 6):
        found = []
        for seed in seeds(3):
            low, high = (_mlp_witness(seed, depth, _unchanged, s) for s in (1.0, 2.0))
            found += [
                float(torch.log2(high.block("full", n, n).norm() / low.block("full", n, n).norm())) for n in low.weights
            ]
        checks.append(close(f"degree of the diagonal blocks, depth {depth}, farthest", _farthest(found, 2), 2, 1e-9))
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
            for w in (_mlp_witness(seed, 3, activation) for seed in seeds(5))
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
    witness = Witness(lambda w: torch.relu(one @ w["1"]) ** 2 @ w["2"], {"1": one, "2": one}, mean_square(0 * one))
    return float(witness.block("functional", "1", "1"))
