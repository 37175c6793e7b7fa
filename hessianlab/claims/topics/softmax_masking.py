"""Dividing scores by their sum in place of softmax, and hiding future tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Finding, as_printed, at_least, at_most, close, equal, share, true
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import (
    MASKED,
    SHAPES,
    apart,
    by_row_sum,
    divided,
    dot_products,
    from_uniform,
    row,
    softmax,
)
from hessianlens.attention import SelfAttention
from hessianlens.models import Transformer

NEAR, FAR = (10, 9, 8), (100, 9, 8)
"""The article's scenarios A and B."""

KEYS = (4, 16, 64)
"""Lengths of the random rows."""


@claim("C8")
def one_negative() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("scores over their sum", divided([3, -2, 1]), ["1.5", "-1.0", "0.5"]),))


@claim("C9")
def two_scenarios() -> Finding:
    """As printed."""
    return Finding(
        checks=(
            as_printed("10, 9, 8 over 27", divided(NEAR), [".37", ".33", ".30"]),
            as_printed("100, 9, 8 over 117", divided(FAR), [".85", ".08", ".07"]),
        )
    )


@claim("C10")
def look_alike() -> Finding:
    """Plain division separates them more."""
    plain = apart(divided(NEAR), divided(FAR))
    soft = apart(softmax(NEAR), softmax(FAR))
    larger = tuple(100 * score for score in NEAR)
    return Finding(
        checks=(at_most("distance under plain division, against that under softmax", plain, round(soft, 3)),),
        support=(
            at_least("plain distance over softmax distance", plain / soft, 1.4),
            close(
                "distance of 10, 9, 8 from 1000, 900, 800 under plain division",
                apart(divided(NEAR), divided(larger)),
                0,
                1e-15,
            ),
            at_least("the same under softmax", apart(softmax(NEAR), softmax(larger)), 0.3),
            close(
                "distance of 10, 9, 8 from 110, 109, 108 under softmax",
                apart(softmax(NEAR), softmax([110, 109, 108])),
                0,
                1e-14,
            ),
        ),
        example=f"plain: {shown(divided(NEAR))} and {shown(divided(FAR))}; softmax: {shown(softmax(NEAR))} and "
        f"{shown(softmax(FAR))}.",
        numbers={"plain": plain, "soft": soft},
    )


def _rows(seed: int, keys: int) -> Tensor:
    """A thousand rows of scaled scores of random queries and keys."""
    return dot_products(seed + keys, 64, 1000, keys) / 8


@claim("C26")
def negative_weights() -> Finding:
    """Nearly every row, with weights that may be very large."""
    seed = first_seed()
    checks = []
    for keys in KEYS:
        weights = by_row_sum(_rows(seed, keys))
        checks.append(share(f"rows of {keys} with a negative weight", int((weights < 0).any(-1).sum()), 1000, 0.8))
        if keys == KEYS[-1]:
            size = float(weights.abs().amax())
            checks.append(at_least("largest absolute weight, rows of 64: sums near zero blow weights up", size, 10))
    return Finding(checks=tuple(checks))


@claim("C27")
def too_uniform() -> Finding:
    """On scores of both signs it is the other way round."""
    seed = first_seed()
    flatter, above = [], []
    for keys in KEYS:
        scores = _rows(seed, keys)
        flatter.append(share(f"rows of {keys} that are more uniform than under softmax", _more_uniform(scores), 1000))
        lifted = scores - scores.amin(-1, keepdim=True) + 1
        above.append(share(f"rows of {keys}, scores shifted to be at least 1", _more_uniform(lifted), 1000))
    plain = by_row_sum(_rows(seed, 16))
    return Finding(
        checks=tuple(flatter),
        conditional=tuple(above),
        support=(
            at_least("median distance from uniform by row sum, rows of 16", float(from_uniform(plain).median()), 1.0),
            at_most("largest such distance under softmax", float(from_uniform(_rows(seed, 16).softmax(-1)).max()), 1.0),
            true(
                "a softmax row is never further than 1 from uniform, a row sum may be",
                from_uniform(plain).max().item() > 1,
            ),
        ),
        example=f"scores 1, -0.9: row sum {shown(divided([1, -0.9]), 0)}, softmax {shown(softmax([1, -0.9]))}; "
        f"scores 10, 9, 8: row sum {shown(divided(NEAR))}, softmax {shown(softmax(NEAR))}.",
    )


def _more_uniform(scores: Tensor) -> int:
    return int((from_uniform(by_row_sum(scores)) < from_uniform(torch.softmax(scores, -1))).sum())


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
        numbers={"row": shown(weights[:2])},
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
        numbers={"row": shown(weights[:2])},
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
