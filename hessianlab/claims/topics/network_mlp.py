"""MLPs, the documents' point of comparison: their outer product, their functional part, their signs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, share
from hessianlab.claims.quantities import EXACT, gap, largest, relative_minimum, smallest
from hessianlab.claims.samples import Weights, Witness, mean_square, normal

WIDTHS = ((3, 4, 2), (2, 3, 3, 2), (4, 3, 3, 2, 3))
"""Widths of the layers, input first."""

TOKENS = 6
ZERO = 1e-12


def mlp(X: Tensor, activation: Callable[[Tensor], Tensor], w: Weights) -> Tensor:
    """``W^n a(... a(W^1 x))`` for every row x of X."""
    layers = list(w.values())
    for weight in layers[:-1]:
        X = activation(X @ weight.T)
    return X @ layers[-1].T


def linear(x: Tensor) -> Tensor:
    """No activation."""
    return x


def weights(seed: int, widths: tuple[int, ...]) -> Weights:
    """One matrix a layer, out x in, N(0, 1/in)."""
    return {f"W{i + 1}": normal(100 * seed + i, b, a) / a**0.5 for i, (a, b) in enumerate(pairwise(widths))}


def data(seed: int, widths: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Inputs and targets."""
    return normal(100 * seed + 50, TOKENS, widths[0]), normal(100 * seed + 51, TOKENS, widths[-1])


def half_mean(Y: Tensor) -> Callable[[Tensor], Tensor]:
    """``E |F(x) - y|^2 / 2``, the mean over samples."""
    return lambda F: (F - Y).square().sum() / (2 * len(Y))


def printed_block(X: Tensor, w: Weights, layer: int) -> Tensor:
    """The outer-product block of a layer as Section 2 prints it."""
    matrices = list(w.values())
    behind = torch.eye(matrices[layer].shape[0], dtype=X.dtype)
    for later in matrices[layer + 1 :]:
        behind = later @ behind
    before = X
    for earlier in matrices[:layer]:
        before = before @ earlier.T
    return torch.kron(behind.T @ behind, before.T @ before / len(X))


def _block_gaps(loss: Callable[[Tensor], Callable[[Tensor], Tensor]], factor: Callable[[int], float]) -> float:
    gaps = []
    for widths in WIDTHS:
        for seed in seeds(3):
            (X, Y), w = data(seed, widths), weights(seed, widths)
            witness = Witness(partial(mlp, X, linear), w, loss(Y))
            for i, name in enumerate(w):
                gaps.append(gap(factor(widths[-1]) * printed_block(X, w, i), witness.block("outer", name, name)))
    return largest(gaps)


def _functional_gap() -> float:
    """Functional Hessians of two data sets with the same covariance of inputs and residuals, for linear MLPs."""
    gaps = []
    for widths in WIDTHS:
        for seed in seeds(3):
            w = weights(seed, widths)
            X, delta = data(seed, widths)
            turn = torch.linalg.qr(normal(seed + 77, TOKENS, TOKENS)).Q
            found = [
                Witness(partial(mlp, X_, linear), w, partial(_along, d_)).functional
                for X_, d_ in ((X, delta), (turn @ X, turn @ delta))
            ]
            gaps.append(gap(found[1], found[0]))
    return largest(gaps)


def _along(delta: Tensor, F: Tensor) -> Tensor:
    return (delta * F).sum()


@claim("P65")
def mlp_block() -> Finding:
    """The printed block under two losses."""
    printed = at_most("largest distance, loss E |F - y|^2 / 2", _block_gaps(half_mean, lambda d: 1.0), EXACT)
    covariance = at_most("functional part, same residual-input covariance", _functional_gap(), EXACT)
    own = _block_gaps(mean_square, lambda d: 1.0)
    return Finding(
        checks=(printed, covariance, at_most("largest distance, the paper's loss of Section 2", own, EXACT)),
        conditional=(printed, covariance),
        support=(
            at_most(
                "largest distance with the factor 2 / d, the paper's loss",
                _block_gaps(mean_square, lambda d: 2 / d),
                EXACT,
            ),
        ),
        example="output of width 3: the printed block is 3/2 of the Hessian of the paper's loss, a relative distance "
        f"of {own:.2g}; at width 2 the two losses happen to agree.",
    )


@measured
def _relu_mlps() -> list[Witness]:
    found = []
    for widths in WIDTHS:
        for seed in seeds(10):
            X, Y = data(seed, widths)
            found.append(Witness(partial(mlp, X, torch.relu), weights(seed, widths), mean_square(Y)))
    return found


@measured
def relu_signs() -> tuple[float, float, list[float]]:
    """ReLU MLPs: largest functional diagonal block, smallest eigenvalue of diagonal blocks, and of the whole."""
    hollow, blocks, whole = [], [], []
    for w in _relu_mlps():
        whole.append(relative_minimum(w.full))
        blocks += [relative_minimum(w.block("full", n, n)) for n in w.weights]
        size = float(w.full.norm()) or 1.0
        hollow += [float(w.block("functional", n, n).abs().max()) / size for n in w.weights]
    return largest(hollow), smallest(blocks), whole


@claim("A15")
def relu_mlp_blocks() -> Finding:
    """Diagonal blocks, one layer at a time."""
    hollow, blocks, _ = relu_signs()
    return Finding(
        checks=(
            at_most("largest entry of a functional diagonal block", hollow, 1e-14),
            at_least("smallest relative eigenvalue of a diagonal block", blocks, -ZERO),
        )
    )


@claim("A16")
def eigenvalues_everywhere() -> Finding:
    """The whole Hessian, and its smallest case."""
    _, blocks, whole = relu_signs()
    one = torch.ones(1, 1, dtype=torch.float64)
    tiny = Witness(partial(mlp, one, torch.relu), {"W1": one / 2, "W2": one / 2}, mean_square(one)).full
    values = torch.linalg.eigvalsh(tiny)
    by_block = at_least("smallest relative eigenvalue of a diagonal block", blocks, -ZERO)
    negative = sum(v < -1e-6 for v in whole)
    return Finding(
        checks=(by_block, at_least("smallest relative eigenvalue of a whole Hessian", whole, -ZERO)),
        conditional=(by_block,),
        support=(
            share("whole Hessians with a negative eigenvalue", negative, len(whole), 0.9),
            at_most("smallest eigenvalue of two ReLU layers of one number each", float(values[0]), -0.1),
        ),
        example=f"F(x) = w2 relu(w1 x), x = y = 1, w1 = w2 = 1/2: the Hessian of (F - y)^2 is [[{tiny[0, 0]:.2g}, "
        f"{tiny[0, 1]:.2g}], [{tiny[1, 0]:.2g}, {tiny[1, 1]:.2g}]], eigenvalues {values[0]:.2g} and {values[1]:.2g}; "
        f"of {len(whole)} random networks {negative} have a negative eigenvalue.",
    )
