"""What happens when the exponential or the normalisation of softmax is left out."""

from __future__ import annotations

import torch
from torch import Tensor

from hessianlab.claims.activations import named
from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Finding, at_least, at_most, equal, share, true
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import SHAPES, by_relu_sum, by_row_sum, dot_products, from_uniform, row
from hessianlens.attention import SelfAttention


def _squares(scores: Tensor) -> Tensor:
    return by_row_sum(scores.square())


def _sharp_relu(scores: Tensor) -> Tensor:
    return by_row_sum(torch.relu(scores) ** 8)


@claim("C43")
def without_exponential() -> Finding:
    """Only if the sign of the scores is kept; emphasis can be had by a power."""
    seed = first_seed()
    scores = dot_products(seed, 64, 1000, 16) / 8
    keeping = {"raw scores": scores, "row sum": by_row_sum(scores)}
    kept = scores[(scores > 0).any(-1)]
    positive = {"ReLU, row sum": by_relu_sum(kept), "squares, row sum": _squares(kept)}
    soft, sharper = _peak(scores.softmax(-1)), _peak(_sharp_relu(kept))
    lifted = scores - scores.amin(-1, keepdim=True) + 1
    flatter = int((from_uniform(by_row_sum(lifted)) < from_uniform(lifted.softmax(-1))).sum())
    return Finding(
        checks=(
            *(_negative(name, weights) for name, weights in (keeping | positive).items()),
            at_most("median largest weight, ReLU^8 and row sum, against softmax's", sharper, round(soft, 3)),
        ),
        conditional=(
            *(_negative(name, weights) for name, weights in keeping.items()),
            share("rows with scores of at least 1 that are flatter by row sum than by softmax", flatter, 1000),
        ),
        support=(
            equal("negative weights, ReLU and row sum", int((positive["ReLU, row sum"] < 0).sum()), 0),
            equal("negative weights, squares and row sum", int((positive["squares, row sum"] < 0).sum()), 0),
            at_least("median largest weight, ReLU^8 over softmax", sharper / soft, 1.5),
        ),
        example=f"scores 3, -2, 1: ReLU and row sum {shown(by_relu_sum(row([3, -2, 1])).tolist())}, to the eighth "
        f"power {shown(_sharp_relu(row([3, -2, 1])).tolist(), 4)}, softmax "
        f"{shown(row([3, -2, 1]).softmax(-1).tolist(), 4)}.",
    )


def _peak(weights: Tensor) -> float:
    return float(weights.amax(-1).median())


def _negative(name: str, weights: Tensor) -> Check:
    return share(f"rows with a negative weight, {name}", int((weights < 0).any(-1).sum()), len(weights), 0.8)


@claim("C44")
def without_normalisation() -> Finding:
    """Bounded functions need no normalisation for that."""
    seed = first_seed()
    excess = {name: _excess(name, seed) for name in ("linear", "relu", "exp", "sigmoid", "tanh", "softmax")}
    unbounded = ("linear", "relu", "exp")
    return Finding(
        checks=tuple(_exceeds(name, excess[name]) for name in (*unbounded, "sigmoid", "tanh")),
        conditional=tuple(_exceeds(name, excess[name]) for name in unbounded),
        support=(
            *(
                at_most(f"largest output over the sum of values, {name}", excess[name], 1 + 1e-12)
                for name in ("sigmoid", "tanh")
            ),
            at_most("largest output over the sum of values, softmax", excess["softmax"], 1 + 1e-12),
            true("sigmoid outputs grow with the number of equal tokens", _equal_tokens(20) > 9 * _equal_tokens(2)),
        ),
        example="two tokens with value 1 each and scores 1000: raw scores give 2000, sigmoid "
        f"{2 * float(torch.sigmoid(torch.tensor(1000.0))):.0f}, softmax 1.",
    )


def _excess(activation: str, seed: int) -> float:
    """The largest output over the sum of the values' norms, over score scales, shapes and seeds."""
    found = []
    for n in range(3):
        for length, width, d_k in SHAPES:
            X = normal(seed + n, length, width)
            layer = SelfAttention.random(width, d_k, seed=seed + n, dtype=torch.float64, activation=activation)
            values = (X @ layer.W_V).norm(dim=-1).sum()
            # exp overflows beyond a factor of ten; it is far above the bound by then.
            for factor in (1, 10) if activation == "exp" else (1, 1e2, 1e4, 1e6):
                out = SelfAttention(factor * layer.W_Q, layer.W_K, layer.W_V, activation=activation)(X)
                found.append(float(out.norm(dim=-1).max() / values))
    return max(found)


def _exceeds(name: str, excess: float) -> Check:
    measured = f"{excess:.3g}"
    return Check(f"largest output over the sum of values, {named(name)}", measured, "at least 1000", excess >= 1000)


def _equal_tokens(count: int) -> float:
    ones = torch.ones(1, 1, dtype=torch.float64)
    layer = SelfAttention(ones, ones, ones, activation="sigmoid")
    return float(layer(torch.ones(count, 1, dtype=torch.float64)).max())
