"""Temperature: the printed rows, and what it does in general."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Curves, Finding, as_printed, at_least, at_most, equal
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import softmax
from hessianlens.attention import SelfAttention, attention_entropy

SCORES = (3, 2, 1)


@claim("C37")
def standard() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("softmax at temperature 1", softmax(SCORES), [".67", ".24", ".09"]),))


@claim("C38")
def sharp() -> Finding:
    """The printed row belongs to a temperature of about 0.56."""
    weights, printed = softmax(SCORES, 0.5), [".84", ".14", ".02"]
    found = _temperatures(printed)
    return Finding(
        checks=(as_printed("softmax at temperature 0.5", weights, printed),),
        support=(
            as_printed("softmax at temperature 0.5", weights, [".87", ".12", ".02"]),
            at_least("lowest temperature that gives the printed row", min(found, default=0.0), 0.54),
            at_most("highest temperature that gives the printed row", max(found, default=1.0), 0.58),
        ),
        example=f"1/(1 + exp(-2) + exp(-4)) = {weights[0]:.4f}, which rounds to 0.87.",
        told={"row": shown(weights), "low": min(found), "high": max(found)},
    )


@claim("C39")
def soft() -> Finding:
    """No temperature gives the printed row."""
    weights, printed = softmax(SCORES, 2.0), [".49", ".32", ".19"]
    return Finding(
        checks=(as_printed("softmax at temperature 2", weights, printed),),
        support=(
            as_printed("softmax at temperature 2", weights, [".51", ".31", ".19"]),
            equal("temperatures that give the printed row", len(_temperatures(printed)), 0),
        ),
        example=f"1/(1 + exp(-0.5) + exp(-1)) = {weights[0]:.4f}, which rounds to 0.51.",
        told={"row": shown(weights)},
    )


def _temperatures(printed: Sequence[str]) -> list[float]:
    """Temperatures at which the scores give the printed row."""
    grid = [0.1 * 1.001**n for n in range(4608)]
    rows = torch.softmax(torch.tensor([[score / t for score in SCORES] for t in grid], dtype=torch.float64), -1)
    near = (rows - torch.tensor([float(text) for text in printed], dtype=torch.float64)).abs().amax(-1) <= 0.005
    return [t for t, hit in zip(grid, near.tolist(), strict=True) if hit]


@claim("C40")
def monotone() -> Finding:
    """Monotone on every row."""
    seed = first_seed()
    temperatures = torch.logspace(-2, 2, 60, dtype=torch.float64)
    falls, rises, flat, sharpest = 0.0, 0.0, 0.0, 0.0
    for keys in (3, 10, 40):
        rows = normal(seed + keys, 100, keys)
        weights = (rows[None] / temperatures[:, None, None]).softmax(-1)
        entropy, peak = attention_entropy(weights), weights.amax(-1)
        falls = max(falls, float((entropy[:-1] - entropy[1:]).max()))
        rises = max(rises, float((peak[1:] - peak[:-1]).max()))
        flat = max(flat, float((math.log(keys) - entropy[-1]).max()))
        sharpest = max(sharpest, float(entropy[0].median()))
    ts = tuple(temperatures.tolist())
    example = attention_entropy(torch.stack([torch.tensor(softmax(SCORES, t)) for t in ts]))
    return Finding(
        checks=(
            at_most("largest fall of entropy from one temperature to the next", falls, 1e-12),
            at_most("largest rise of the top weight", rises, 1e-12),
            at_most("largest distance from log n at temperature 100", flat, 1e-2),
            at_most("median entropy at temperature 0.01", sharpest, 1e-2),
        ),
        curves=Curves(
            "temperature", "entropy of the row 3, 2, 1 (nats)", {"softmax": (ts, tuple(example.tolist()))}, log_x=True
        ),
    )


@claim("C41")
def learned_temperature() -> Finding:
    """It does, and adds no function that the query weights do not have."""
    seed = first_seed()
    rises, gap = [], 0.0
    for n in range(5):
        X = normal(seed + n, 9, 8)
        heads = {
            t: SelfAttention.random(8, 4, seed=seed + n, dtype=torch.float64, temperature=t) for t in (0.25, 1.0, 4.0)
        }
        entropies = [float(attention_entropy(head.attention(X)).mean()) for head in heads.values()]
        rises += [later - earlier for earlier, later in pairwise(entropies)]
        gap = max(gap, *(_without(head, X) for head in heads.values()))
    return Finding(
        checks=(at_least("smallest rise of a head's mean entropy with its temperature (nats)", min(rises), 0.05),),
        support=(at_most("gap between a temperature t and W_Q / t", gap, 1e-14),),
        example=f"one query 2 and keys 1, 0 at temperature 2: scores 2/2, 0: {shown(softmax([2, 0], 2.0))}; query "
        f"2/2 at temperature 1: {shown(softmax([1, 0]))}.",
    )


def _without(head: SelfAttention, X: Tensor) -> float:
    plain = SelfAttention(head.W_Q / head.temperature, head.W_K, head.W_V)
    return float((plain(X) - head(X)).abs().max())
