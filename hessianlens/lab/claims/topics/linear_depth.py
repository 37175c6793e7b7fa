"""Depth: stacks of linear attention against linear MLPs, and where MLPs have no functional part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hessianlens.lab.claims.check import at_least, at_most, close
from hessianlens.lab.claims.claim import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.samples import largest, measured, normal, seeds
from hessianlens.lab.claims.witness import Weights, Witness, mean_square

L, WIDTH = 3, 2
DEPTHS = (1, 2, 3)
SMALL = 0.03


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


@claim(
    "P46",
    source="Section 4.1, linear self-attention vs MLP",
    statement="With D stacked linear attention layers the diagonal blocks of the Hessian contain 3^D covariances of the"
    " input, because the Jacobian by any weight contains 3^D copies of X.",
    method="degree in X from doubling the tokens, all weights of D = 1, 2, 3 layers (L = 3, d = 2), 3 seeds: 2 * 3^D"
    " wanted for the full diagonal blocks at small tokens (scale 0.03), for the outer product, and without target",
)
def degree_of_stacked_attention() -> Finding:
    """The outer product has the stated degree; lower layers have a functional part of half that degree."""
    full = {d: _degrees(d, "full", 1.0, SMALL) for d in DEPTHS}
    outer = {d: _degrees(d, "outer", 1.0, SMALL) for d in DEPTHS}
    untargeted = {d: _degrees(d, "full", 0.0, SMALL) for d in DEPTHS}

    def worst(found: dict[int, dict[str, list[float]]], depth: int, only: str = "") -> float:
        values = [v for name, row in found[depth].items() if name.endswith(only) for v in row]
        return _farthest(values, 2 * 3**depth)

    first = full[2]["Q0"]
    return Finding(
        checks=tuple(
            close(f"degree of the full diagonal blocks, D = {d}, farthest", worst(full, d), 2 * 3**d, 0.05)
            for d in DEPTHS
        ),
        conditional=(
            *(close(f"degree of the outer blocks, D = {d}, farthest", worst(outer, d), 2 * 3**d, 1e-6) for d in DEPTHS),
            *(
                close(
                    f"degree of the full blocks of the last layer, D = {d}", worst(full, d, str(d - 1)), 2 * 3**d, 1e-6
                )
                for d in DEPTHS
            ),
        ),
        condition="the outer-product Hessian is meant, or the blocks of the last layer",
        correction="The Jacobian has degree 3^D in X, so the outer-product blocks have degree 2 * 3^D, that is 3^D"
        " covariances. Below the last layer F is not linear in a weight, and the functional part of its diagonal block"
        " has degree 3^D times the residual. With a target that does not scale with X this part leads for small X; with"
        " target zero the residual has degree 3^D itself and all blocks have degree 2 * 3^D.",
        support=(
            close(
                "D = 2, degree of the full first query block at small tokens, farthest from 9",
                _farthest(first, 9),
                9,
                0.05,
            ),
            *(
                close(f"degree of the full blocks with target zero, D = {d}", worst(untargeted, d), 2 * 3**d, 1e-6)
                for d in DEPTHS
            ),
        ),
        example=f"D = 2, L = {L}, d_V = d_K = {WIDTH}: doubling tokens of scale {SMALL:g} multiplies the Hessian of"
        f" the first W_Q by 2^{first[0]:.2f} and its outer product by 2^{outer[2]['Q0'][0]:.2f}; claimed 2^18.",
    )


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


@claim(
    "P47",
    source="Section 4.1, linear self-attention vs MLP; Figure 8",
    statement="A diagonal block of the Hessian of a linear MLP contains two copies of the data at any depth.",
    method="degree in X of every diagonal block of the full Hessian from doubling the inputs, depth 1 to 5, 3 seeds,"
    " width 3, to 1e-9",
)
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
def _hollow_entries() -> dict[str, float]:
    """Largest entry of a functional diagonal block of the lower layers, three-layer MLPs, by activation."""
    return {
        name: largest(
            float(w.block("functional", n, n).abs().max())
            for w in (_mlp_witness(seed, 3, activation) for seed in seeds(5))
            for n in w.weights
        )
        for name, activation in ACTIVATIONS.items()
    }


@claim(
    "P48",
    source="Section 2, Hessian of MLPs and CNNs",
    statement="The functional Hessian of a linear MLP has zero diagonal blocks, and so has that of an MLP with any"
    " piecewise non-linearity, almost everywhere.",
    method="largest entry of the functional diagonal blocks of three-layer MLPs, 5 seeds, by autograd: linear, ReLU,"
    " leaky ReLU, and squared ReLU, which is piecewise quadratic; exactly zero wanted",
)
def hollow_mlps() -> Finding:
    """Zero where the non-linearity is piecewise linear."""
    found = _hollow_entries()
    checks = {n: at_most(f"{n}: largest entry of a functional diagonal block", v, 0.0) for n, v in found.items()}
    off = largest(
        float(w.block("functional", "0", "1").norm()) for w in (_mlp_witness(s, 3, torch.relu) for s in seeds(5))
    )
    scalar = _scalar_example()
    return Finding(
        checks=tuple(checks.values()),
        conditional=(
            *(checks[n] for n in PIECEWISE_LINEAR),
            at_least("ReLU: largest norm of an off-diagonal block", off, 1e-6),
        ),
        condition="the non-linearity is piecewise linear, as ReLU, which is what the cited works treat",
        correction="Between kinks a piecewise linear network is a polynomial in which each weight matrix occurs once,"
        " so its second derivative by one matrix is zero. Pieces that are not linear break this: with squared ReLU the"
        " lower layers have a functional diagonal block.",
        support=(at_least("squared ReLU: largest entry of a functional diagonal block", found["squared ReLU"], 1e-3),),
        example="F = relu(x W_1)^2 W_2 with x = W_1 = W_2 = 1 and target 0: the functional Hessian of W_1 is"
        f" {scalar:g}; with relu(x W_1) W_2 it is 0.",
    )


def _scalar_example() -> float:
    one = torch.ones(1, 1, dtype=torch.float64)
    witness = Witness(lambda w: torch.relu(one @ w["1"]) ** 2 @ w["2"], {"1": one, "2": one}, mean_square(0 * one))
    return float(witness.block("functional", "1", "1"))


CLAIMS = (degree_of_stacked_attention, degree_of_linear_mlps, hollow_mlps)
