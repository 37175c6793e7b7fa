"""What the exponential does: positive weights, emphasis, derivatives; and the three steps of its code."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Curves, Finding, as_printed, at_most, close, equal, share, true
from hessianlab.claims.samples import normal, shown
from hessianlab.claims.score_rows import divided, row, softmax
from hessianlens.attention.activations import ACTIVATIONS


@claim("C3")
def three_properties() -> Finding:
    """Positive and smooth; it amplifies scores above 1 and damps scores below."""
    seed = first_seed()
    uniform = torch.rand(2, 1000, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    low, high = uniform[0].clamp(min=1e-6), 1 + 9 * uniform[1]
    lowest, worst = _positivity_and_jacobian(seed)
    good = (
        true(f"every weight of 60 random rows is positive (smallest {lowest:.2g})", lowest > 0),
        at_most("largest gap between the derivative by autograd and diag(p) - p p'", worst, 1e-14),
    )
    small, large = _amplified(low), _amplified(high)
    example_soft, example_plain = softmax([0.2, 0.1]), divided([0.2, 0.1])
    xs = tuple(0.1 * n for n in range(1, 41))
    return Finding(
        checks=(*good, share("pairs of scores between 0 and 1 that softmax pulls further apart", small, 1000)),
        conditional=(*good, share("pairs of scores above 1 that softmax pulls further apart", large, 1000)),
        support=(
            share("pairs below 1 that softmax pulls closer together", 1000 - small, 1000),
            at_most(
                "largest (p_a - p_b)/(a - b): differences themselves always shrink", _steepest(uniform), 0.5 + 1e-9
            ),
        ),
        example=f"scores 0.2, 0.1: plain division {shown(example_plain)}, softmax {shown(example_soft)}; scores 10, "
        f"5: plain division {shown(divided([10, 5]))}, softmax {shown(softmax([10, 5]))}.",
        curves=Curves(
            "the smaller score, b",
            "ratio of the two weights for scores 2 b and b",
            {"softmax": (xs, tuple(math.exp(x) for x in xs)), "plain division": (xs, tuple(2.0 for _ in xs))},
            log_y=True,
        ),
    )


def _amplified(pairs: Tensor) -> int:
    top, bottom = pairs.amax(-1), pairs.amin(-1)
    return int((torch.exp(top - bottom) > top / bottom).sum())


def _steepest(pairs: Tensor) -> float:
    weights = pairs.softmax(-1)
    return float(((weights[..., 0] - weights[..., 1]) / (pairs[..., 0] - pairs[..., 1])).max())


def _positivity_and_jacobian(seed: int) -> tuple[float, float]:
    lowest, worst = math.inf, 0.0
    for n in (3, 12, 40):
        for scores in 5 * normal(seed + n, 20, n):
            p = torch.softmax(scores, -1)
            gap = jacrev(lambda t: torch.softmax(t, -1))(scores) - (torch.diag(p) - torch.outer(p, p))
            lowest, worst = min(lowest, float(p.min())), max(worst, float(gap.abs().max()))
    return lowest, worst


def printed_code(x: Tensor) -> Tensor:
    """Shift by the maximum, exponentiate, divide by the sum: the steps of the article's code."""
    exponentials = torch.exp(x - x.max())
    return exponentials / exponentials.sum()


@claim("C4")
def shift_exp_normalise() -> Finding:
    """Right for a vector with something in it."""
    seed = first_seed()
    rows = [scores for n in (3, 12, 40) for scores in 5 * normal(seed + n, 20, n)]
    gap = max(float((printed_code(t) - t.exp() / t.exp().sum()).abs().max()) for t in rows)
    large = row([1000, 999, 998])
    textbook = large.exp() / large.exp().sum()
    matrix = normal(seed, 5, 7)
    sums = printed_code(matrix).sum(-1)
    vector_only = (
        at_most("largest gap to the textbook formula", gap, 1e-15),
        at_most(
            "gap to the softmax of 3, 2, 1 for 1000, 999, 998",
            _gap(printed_code(large), row(softmax([3, 2, 1]))),
            1e-15,
        ),
    )
    per_row = torch.stack([printed_code(scores) for scores in matrix])
    return Finding(
        checks=(
            *vector_only,
            close("smallest sum of a row of a 5 x 7 matrix of weights", float(sums.min()), 1.0, 1e-12),
            true(
                "a row masked altogether has finite weights", bool(printed_code(row([-math.inf] * 2)).isfinite().all())
            ),
        ),
        conditional=(*vector_only, at_most("gap to softmax, row by row", _gap(per_row, matrix.softmax(-1)), 1e-15)),
        support=(
            true("the textbook formula gives no number for 1000, 999, 998", bool(textbook.isnan().any())),
            close("sum of all entries of the 5 x 7 matrix", float(sums.sum()), 1.0, 1e-12),
            *_overflow(),
        ),
        example=f"scores [[0, 0], [0, 0]]: the code gives {printed_code(torch.zeros(2, 2)).tolist()} where attention "
        f"needs {torch.zeros(2, 2).softmax(-1).tolist()}.",
    )


def _gap(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())


def _overflow() -> tuple[Check, ...]:
    largest = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}
    limits = {name: math.log(torch.finfo(dtype).max) for name, dtype in largest.items()}
    return tuple(
        true(
            f"without the shift, exp overflows in {name} just above {limit:.2f}",
            bool(_exp(limit * 1.001, largest[name]).isinf()) and bool(_exp(limit * 0.999, largest[name]).isfinite()),
        )
        for name, limit in limits.items()
    )


def _exp(score: float, dtype: torch.dtype) -> Tensor:
    return torch.tensor(score, dtype=dtype).exp()


@claim("C36")
def exponentials() -> Finding:
    """As printed."""
    seed = first_seed()
    masked = 100 * normal(seed, 100, 6)
    masked[:, 2] = -math.inf
    kinds = (torch.float64, torch.float32, torch.float16)
    zeros = [float(torch.tensor(-math.inf, dtype=kind).exp()) for kind in kinds]
    visible = torch.isfinite(masked)[None]
    library = ACTIVATIONS["softmax"]().value(masked.where(visible[0], torch.zeros(()).double())[None], visible)
    return Finding(
        checks=(
            equal("exp of minus infinity in three precisions", zeros, [0.0, 0.0, 0.0]),
            equal("weights of the masked score, largest", float(masked.softmax(-1)[:, 2].max()), 0.0),
            equal("the same by this library's softmax", float(library[0, :, 2].max()), 0.0),
            at_most("exp(-100)", math.exp(-100), 1e-43),
            equal("exp(0)", math.exp(0), 1.0),
            as_printed("exp(10) in thousands", [math.exp(10) / 1000], ["22"]),
        )
    )
