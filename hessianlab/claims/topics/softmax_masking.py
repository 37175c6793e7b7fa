"""Hiding future tokens: minus infinity before softmax, and what plain division makes of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Finding, as_printed, at_least, equal, share, true
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import MASKED, SHAPES, by_row_sum, divided, row, softmax
from hessianlens.attention import SelfAttention
from hessianlens.models import Transformer


@claim("C5")
def masked_example() -> Finding:
    """Both visible weights are off by one in the last digit."""
    weights = softmax([2.8, 1.2, MASKED, MASKED])
    return Finding(
        checks=(as_printed("softmax of the masked row", weights, [".82", ".18", ".00", ".00"]),),
        support=(
            as_printed("softmax of the masked row", weights, [".83", ".17", ".00", ".00"]),
            equal("weights of the masked tokens", weights[2:], [0.0, 0.0]),
        ),
        example=f"1/(1 + exp(-(2.8 - 1.2))) = {weights[0]:.4f}, which rounds to 0.83.",
        told={"row": shown(weights[:2])},
    )


def attend(X: Tensor, layer: SelfAttention, masked: bool) -> Tensor:
    """Attention as the article builds it: scores, minus infinity on the future, softmax, weighted sum."""
    scores = (X @ layer.W_Q) @ (X @ layer.W_K).T / math.sqrt(layer.d_k)
    if masked:
        scores = scores + torch.full_like(scores, MASKED).triu(1)
    return scores.softmax(-1) @ (X @ layer.W_V)


def _changed_future(seed: int, masked: bool) -> list[tuple[float, float]]:
    """For each shape: change of the first half's output after redrawing the second half, and its largest derivative."""
    found = []
    for length, width, d_k in SHAPES:
        layer = SelfAttention.random(width, d_k, seed=seed, dtype=torch.float64)
        X, other = normal(seed + length, 2, length, width)
        half = length // 2
        changed = torch.cat([X[:half], 100 * other[half:]])
        before, after = (attend(tokens, layer, masked)[:half] for tokens in (X, changed))
        derivative = jacrev(lambda tokens, layer=layer, half=half: attend(tokens, layer, masked)[:half])(X)
        found.append((float((after - before).abs().max()), float(derivative[:, :, half:].abs().max())))
    return found


def _model_change(seed: int) -> float:
    """The largest change of a two-layer decoder's early logits after its later tokens change."""
    model = Transformer(layers=2, d_model=16, d_mlp=32, dtype=torch.float64, seed=seed)
    tokens = torch.randint(0, 12, (4, 18), generator=torch.Generator().manual_seed(seed))
    other = tokens.clone()
    other[:, 9:] = (tokens[:, 9:] + 1) % 12
    with torch.no_grad():
        return float((model(tokens)[:, :9] - model(other)[:, :9]).abs().max())


@claim("C6")
def causal() -> Finding:
    """Exactly zero, in value and derivative."""
    seed = first_seed()
    pairs = [pair for n in range(5) for pair in _changed_future(seed + 10 * n, masked=True)]
    return Finding(
        checks=(
            equal("largest change of an earlier output", max(change for change, _ in pairs), 0.0),
            equal("largest derivative of an earlier output by a later token", max(slope for _, slope in pairs), 0.0),
            equal("largest change of earlier logits in a decoder", max(_model_change(seed + n) for n in range(3)), 0.0),
        )
    )


@claim("C45")
def leaks() -> Finding:
    """Every earlier output moves."""
    seed = first_seed()
    pairs = [pair for n in range(5) for pair in _changed_future(seed + 10 * n, masked=False)]
    return Finding(
        checks=(
            at_least("smallest change of an earlier output over 15 layers", min(change for change, _ in pairs), 1e-2),
            at_least("smallest of their largest derivatives by a later token", min(slope for _, slope in pairs), 1e-3),
        )
    )


@claim("C7")
def edge_cases() -> Finding:
    """All but the row that sees nothing."""
    seed = first_seed()
    by_visible = [_proper_rows(seed, visible) for visible in range(7)]
    nothing, something = by_visible[0], by_visible[1:]
    padded = torch.zeros(3, 3) + torch.full((3, 3), MASKED).triu(1)
    padded[:, 0] = MASKED
    return Finding(
        checks=(share("proper rows among those with 0 to 6 visible scores", sum(by_visible), 700),),
        conditional=(share("proper rows among those with 1 to 6 visible scores", sum(something), 600),),
        support=(
            equal("proper rows among 100 that see nothing", nothing, 0),
            equal("rows without a number, padding in front of a causal sequence of 3", _not_numbers(padded), 1),
        ),
        example=f"softmax of (-inf, -inf) = {shown(softmax([MASKED, MASKED]))}; of (-inf, 5) = "
        f"{shown(softmax([MASKED, 5]))}.",
    )


def _proper_rows(seed: int, visible: int) -> int:
    scores = 10 * normal(seed, 100, 6)
    scores[:, visible:] = MASKED
    scores.requires_grad_()
    weights = scores.softmax(-1)
    weights[:, 0].sum().backward()
    assert scores.grad is not None
    proper = ((weights.sum(-1) - 1).abs() < 1e-14) & scores.grad.isfinite().all(-1)
    return int(proper.sum())


def _not_numbers(scores: Tensor) -> int:
    return int(scores.softmax(-1).isnan().any(-1).sum())


@claim("C33")
def division_breaks() -> Finding:
    """Masked tokens get no number, visible ones zero."""
    seed = first_seed()
    weights = by_row_sum(row([2.8, 1.2, MASKED, MASKED]))
    rows = normal(seed, 100, 6)
    rows[:, 4:] = MASKED
    many = by_row_sum(rows)
    return Finding(
        checks=(
            true("the two masked weights of the example are not numbers", bool(weights[2:].isnan().all())),
            equal("sum of the visible weights of the example", abs(float(weights[:2].sum())), 0.0),
            share("random rows with a weight that is not a number", int(many.isnan().any(-1).sum()), 100),
        )
    )


@claim("C34")
def zero_mask() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("scores over their sum", divided([2.8, 1.2, 0, 0]), [".70", ".30", "0", "0"]),))


@claim("C35")
def fatal_flaw() -> Finding:
    """The signs cancel; what is lost is the order."""
    seed = first_seed()
    weights = divided([-1, -2, 0, 0])
    return Finding(
        checks=(as_printed("scores over their sum", weights, ["-.33", "-.67", "0", "0"]),),
        support=(
            as_printed("scores over their sum", weights, [".33", ".67", "0", "0"]),
            *_signs(seed),
            true("the lower score, -2, gets the larger weight", weights[1] > weights[0]),
        ),
        example=f"-1/(-1 - 2) = {weights[0]:.2f}; for the flaw meant, take 1, -2: weights {shown(divided([1, -2]))}.",
        told={"row": shown(weights[:2])},
    )


def _signs(seed: int) -> tuple[Check, Check, Check]:
    negative = mixed = mixed_negative = turned = 0
    for visible in (2, 4, 8):
        rows = normal(seed + visible, 1000, visible)
        below = -rows.abs()
        weights = by_row_sum(below)
        negative += int((weights < 0).any(-1).sum())
        turned += int((weights.argmax(-1) == below.argmin(-1)).sum())
        both = rows[(rows > 0).any(-1) & (rows < 0).any(-1)]
        mixed += len(both)
        mixed_negative += int((by_row_sum(both) < 0).any(-1).sum())
    return (
        equal("rows of negative scores with a negative weight, of 3000", negative, 0),
        share("rows of negative scores whose lowest score gets the most weight", turned, 3000),
        share("rows with scores of both signs that have a negative weight", mixed_negative, mixed),
    )
