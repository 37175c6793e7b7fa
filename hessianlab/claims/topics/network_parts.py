"""The network of the paper's experiments, and its MLP."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, measured, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close, equal, share
from hessianlab.claims.networks import HISTOGRAM, PUBLISHED, TASK
from hessianlab.claims.quantities import EXACT, gap, largest, relative_minimum, smallest
from hessianlab.claims.samples import (
    DenseHessians,
    Weights,
    attention_output,
    mean_square,
    normal,
    sample,
    softmax_rows,
)
from hessianlab.paper import PrintedAttention, theorem_3_1, theorem_3_2
from hessianlab.paper.printed import Block
from hessianlens.layer import numerical_rank
from hessianlens.models import Transformer

GPT2_STD = 0.02
"""Standard deviation of GPT-2's weights at initialisation, at every width (its released configuration)."""

GPT2_WIDTHS = (768, 1024, 1280, 1600)
PAIRS: tuple[tuple[Block, Block], ...] = (("Q", "Q"), ("Q", "K"), ("V", "Q"), ("V", "V"), ("K", "K"), ("V", "K"))
_LETTERS = ("Q", "K", "V")


def _second_layer(X: Tensor, w: Weights) -> Tensor:
    """Two chained attention layers; weights of the first are named Q1, K1, V1."""
    inner = attention_output(X, {n: w[f"{n}1"] for n in _LETTERS}, softmax_rows)
    return attention_output(inner, {n: w[n] for n in _LETTERS}, softmax_rows)


@claim("P61")
def last_layer() -> Finding:
    """The theorems at the hidden tokens."""
    gaps: dict[str, list[float]] = {"outer": [], "functional": []}
    naive = []
    for shape in ((4, 3, 2), (5, 2, 3), (3, 3, 3)):
        for seed in seeds(3):
            top, first = sample(seed, *shape), sample(seed + 50, *shape)
            weights = dict(top.weights) | {f"{n}1": w for n, w in first.weights.items()}
            network = DenseHessians(partial(_second_layer, top.X), weights, mean_square(top.Y))
            hidden = attention_output(top.X, first.weights, softmax_rows)
            setting = PrintedAttention(hidden, top.weights["Q"], top.weights["K"], top.weights["V"], top.Y)
            for row, col in PAIRS:
                gaps["outer"].append(gap(theorem_3_1(setting, row, col), network.block("outer", row, col)))
                if (row, col) != ("V", "V"):
                    gaps["functional"].append(
                        gap(theorem_3_2(setting, row, col), network.block("functional", row, col))
                    )
            naive.append(gap(theorem_3_1(top.setting, "Q", "Q"), network.block("outer", "Q", "Q")))
    return Finding(
        checks=(
            *(at_most(f"largest distance, {part} blocks of the last layer", g, 1e-8) for part, g in gaps.items()),
            at_least("smallest distance if X is not replaced (a test of the test)", naive, 1e-2),
        )
    )


def drawn_at(width: int) -> float:
    """Standard deviation of the weights that are drawn at a width."""
    weights = Transformer(d_model=width).parameters()
    return float(torch.cat([w.detach().flatten() for w in weights if w.ndim == 2]).std())


@claim("P62")
def same_as_gpt2() -> Finding:
    """The rule at several widths."""
    used = (HISTOGRAM.d_model, PUBLISHED.d_model)
    rule = {d: 0.8 / math.sqrt(d) for d in (*used, *GPT2_WIDTHS)}
    drawn = drawn_at(16)
    return Finding(
        checks=tuple(
            close(f"standard deviation at d_V = {d}, against GPT-2's", rule[d], GPT2_STD, 0.0005) for d in used
        ),
        conditional=tuple(
            close(f"standard deviation at d_V = {d}, against 0.8 / sqrt(d_V)", drawn_at(d), rule[d], 0.02 * rule[d])
            for d in used
        ),
        support=(
            close("standard deviation at d_V = 1600, the largest GPT-2", rule[1600], GPT2_STD, 1e-9),
            close(f"standard deviation at d_V = {used[0]}, in units of GPT-2's", rule[used[0]] / GPT2_STD, 10, 1e-9),
            close("standard deviation of the weights drawn for Figure 1", drawn, rule[used[0]], 0.01),
        ),
        example=", ".join(f"d_V = {d}: {std:.4f}" for d, std in rule.items()) + f"; GPT-2: {GPT2_STD} at every width.",
    )


@claim("P63")
def sequence_length() -> Finding:
    """Tokens, predictions and losses counted."""
    text = "12345+67890=080235"
    tokens = int(TASK.batch(1, seed=0)["tokens"].shape[1])
    predicting = equal("positions that have a next token to predict", tokens - 1, 17)
    return Finding(
        checks=(equal("tokens of a sequence, operands, signs and a 6-digit sum", tokens, 17), predicting),
        conditional=(predicting,),
        support=(
            equal("characters of the example", len(text), 18),
            equal("5 + 1 + 5 + 1 + 6", 5 + 1 + 5 + 1 + 6, tokens),
            equal("positions with a loss", len(TASK.loss_positions), 6),
        ),
        example=f"'{text}' has {len(text)} characters.",
    )


def _nearest(W: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors W_Q, W_K of the nearest product of that rank; no other product comes closer."""
    left, values, right = torch.linalg.svd(W)
    roots = values[:rank].sqrt()
    return left[:, :rank] * roots, right[:rank].T * roots


@claim("P64")
def same_functions() -> Finding:
    """The best product of two factors."""
    d = 4
    gaps: dict[int, list[float]] = {k: [] for k in range(1, 6)}
    ranks = []
    for seed in seeds(5):
        W, X = normal(seed, d, d), normal(seed + 60, 8, d)
        ranks.append(numerical_rank(W))
        for d_k in gaps:
            Q, K = _nearest(W, min(d_k, d))
            gaps[d_k].append(gap(X @ Q @ K.T @ X.T, X @ W @ X.T))
    wide = at_most("largest distance of scores, d_K = 4 and 5", gaps[4] + gaps[5], EXACT)
    identity = torch.eye(2, dtype=torch.float64)
    Q, K = _nearest(identity, 1)
    left = float((identity - Q @ K.T).norm())
    return Finding(
        checks=(wide, at_most("largest distance of scores, d_K = 1, 2, 3", gaps[1] + gaps[2] + gaps[3], EXACT)),
        conditional=(wide,),
        support=(
            equal("smallest rank of a random W_QK, d = 4", min(ranks), 4),
            at_least(
                "smallest distance of scores to the best product, d_K = 1, 2, 3", gaps[1] + gaps[2] + gaps[3], 1e-3
            ),
            equal(
                "widths d_K at which two matrices have fewer parameters, d = 4",
                [k for k in gaps if 2 * d * k < d * d],
                [1],
            ),
        ),
        example=f"d_V = 2, d_K = 1: W_QK = I has rank 2; the best product differs from it by {left:.2g} in Frobenius "
        "norm.",
    )


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
    """One matrix per layer, out x in, N(0, 1/in)."""
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
    downstream = torch.eye(matrices[layer].shape[0], dtype=X.dtype)
    for later in matrices[layer + 1 :]:
        downstream = later @ downstream
    before = X
    for earlier in matrices[:layer]:
        before = before @ earlier.T
    return torch.kron(downstream.T @ downstream, before.T @ before / len(X))


def _block_gaps(loss: Callable[[Tensor], Callable[[Tensor], Tensor]], factor: Callable[[int], float]) -> float:
    gaps = []
    for widths in WIDTHS:
        for seed in seeds(3):
            (X, Y), w = data(seed, widths), weights(seed, widths)
            by_autograd = DenseHessians(partial(mlp, X, linear), w, loss(Y))
            for i, name in enumerate(w):
                gaps.append(gap(factor(widths[-1]) * printed_block(X, w, i), by_autograd.block("outer", name, name)))
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
                DenseHessians(partial(mlp, X_, linear), w, partial(_along, d_)).functional
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
def _relu_mlps() -> list[DenseHessians]:
    found = []
    for widths in WIDTHS:
        for seed in seeds(10):
            X, Y = data(seed, widths)
            found.append(DenseHessians(partial(mlp, X, torch.relu), weights(seed, widths), mean_square(Y)))
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
    tiny = DenseHessians(partial(mlp, one, torch.relu), {"W1": one / 2, "W2": one / 2}, mean_square(one)).full
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
