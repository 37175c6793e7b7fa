"""The experimental setting and what is said about networks around one layer (Section 4.2, Appendix F, footnote 3)."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, seeds
from hessianlab.claims.finding import Finding, at_least, at_most, close, equal
from hessianlab.claims.networks import HISTOGRAM, PUBLISHED, TASK
from hessianlab.claims.quantities import EXACT, gap
from hessianlab.claims.samples import Weights, Witness, attention_output, mean_square, normal, sample, softmax_rows
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
            network = Witness(partial(_second_layer, top.X), weights, mean_square(top.Y))
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


@claim("P62")
def same_as_gpt2() -> Finding:
    """The rule at several widths."""
    used = (HISTOGRAM.d_model, PUBLISHED.d_model)
    rule = {d: 0.8 / math.sqrt(d) for d in (*used, *GPT2_WIDTHS)}
    drawn = float(torch.cat([w.detach().flatten() for w in Transformer(d_model=16).parameters() if w.ndim == 2]).std())
    return Finding(
        checks=tuple(
            close(f"standard deviation at d_V = {d}, against GPT-2's", rule[d], GPT2_STD, 0.0005) for d in used
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
