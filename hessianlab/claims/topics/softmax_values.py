"""Softmax: worked numbers, properties, and temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import jacrev

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Check, Curves, Finding, as_printed, at_least, at_most, close, equal, share, true
from hessianlab.claims.samples import fixed, normal, shown
from hessianlab.claims.score_rows import apart, divided, row, softmax
from hessianlens.attention import SelfAttention, attention_entropy
from hessianlens.attention.activations import ACTIVATIONS

CAT = (2.8, 1.2, 0.5, 3.1)
"""Scores of "cat", "sat", "on", "the"."""

CAT_PRINTED = (".28", ".06", ".03", ".38")


@claim("C1")
def cat_sentence() -> Finding:
    """The printed row is that of five tokens, of which one is not shown."""
    true_row = softmax(CAT)
    low, high = _hidden_scores()
    middle = (low + high) / 2
    with_hidden = softmax((*CAT, middle))
    return Finding(
        checks=(as_printed("softmax of the four scores", true_row, CAT_PRINTED),),
        support=(
            close("sum of the printed numbers", sum(map(float, CAT_PRINTED)), 0.75, 1e-12),
            as_printed(f"first four weights with a fifth token of score {middle:.2f}", with_hidden[:4], CAT_PRINTED),
            close("weight of that fifth token", with_hidden[4], 0.25, 0.01),
        ),
        example=f"exp of the scores: {fixed(map(math.exp, CAT), 2)}; their sum is "
        f"{sum(map(math.exp, CAT)):.2f}, so 'the' gets {math.exp(CAT[3]):.2f}/{sum(map(math.exp, CAT)):.2f} = "
        f"{true_row[3]:.2f}, not 0.38.",
        numbers={"row": shown(true_row), "low": low, "high": high},
    )


def _hidden_scores() -> tuple[float, float]:
    """The scores of a fifth token with which the other four round to the printed numbers."""
    seen = [math.exp(score) for score in CAT]
    printed = [float(text) for text in CAT_PRINTED]
    most = min(e / (p - 0.005) for e, p in zip(seen, printed, strict=True))
    least = max(e / (p + 0.005) for e, p in zip(seen, printed, strict=True))
    return math.log(least - sum(seen)), math.log(most - sum(seen))


@claim("C2")
def cat_shares() -> Finding:
    """Softmax sums to one, the printed numbers do not."""
    seed = first_seed()
    cat, _, _, the = softmax(CAT)
    rows = [normal(seed + n, 100, n).mul(10) for n in (2, 9, 50)]
    worst = max(float((scores.softmax(-1).sum(-1) - 1).abs().max()) for scores in rows)
    return Finding(
        checks=(
            close("sum of the printed numbers", sum(map(float, CAT_PRINTED)), 1.0, 0.02),
            as_printed("shares of 'the' and 'cat'", [the, cat], ["0.38", "0.28"]),
        ),
        support=(at_most("largest distance of a softmax row's sum from 1", worst, 1e-14),),
        example=f"0.28 + 0.06 + 0.03 + 0.38 = 0.75; {' + '.join(f'{p:.2f}' for p in softmax(CAT))} = 1.00.",
        numbers={"the": the, "cat": cat},
    )


@claim("C11")
def steps_of_one() -> Finding:
    """The same distribution is printed, correctly, in the section on temperature."""
    weights, printed = softmax([10, 9, 8]), [".47", ".33", ".20"]
    temperatures = [0.01 * 1.01**n for n in range(926)]
    hits = sum(as_printed("", softmax([10, 9, 8], t), printed).passed for t in temperatures)
    return Finding(
        checks=(as_printed("softmax", weights, printed),),
        support=(
            as_printed("softmax", weights, [".67", ".24", ".09"]),
            at_most("distance from the softmax of 3, 2, 1", apart(weights, softmax([3, 2, 1])), 1e-15),
            at_most("temperatures at which the printed numbers come out", hits, 0),
        ),
        example=f"exp(0) = 1, exp(-1) = {math.exp(-1):.3f}, exp(-2) = {math.exp(-2):.3f}; "
        f"1/{1 + math.exp(-1) + math.exp(-2):.3f} = {weights[0]:.3f}, not 0.47.",
        numbers={"row": shown(weights)},
    )


@claim("C12")
def far_ahead() -> Finding:
    """The second weight is exp(-91)."""
    weights = softmax([100, 9, 8])
    return Finding(
        checks=(
            as_printed("softmax", weights, ["1.0", "0.0", "0.0"]),
            at_most("weight of the second token", weights[1], 1e-39),
        )
    )


@claim("C15")
def unscaled_scores() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("softmax", softmax([45, 40, 35]), ["0.993", "0.007", "0.000"]),))


@claim("C16")
def scaled_scores() -> Finding:
    """A last digit, and a divisor of 9 where the section's own is 45."""
    weights = softmax([5, 4.4, 3.9])
    properly = [score / math.sqrt(2048) for score in (45, 40, 35)]
    even = softmax(properly)
    return Finding(
        checks=(as_printed("softmax", weights, [".54", ".29", ".17"]),),
        support=(
            as_printed("softmax", weights, [".53", ".29", ".18"]),
            as_printed("45, 40, 35 over 9", [5, 40 / 9, 35 / 9], ["5.0", "4.4", "3.9"]),
            true("scaled scores of width 2048 are nearly equal in weight", max(even) - min(even) < 0.1),
            as_printed("45, 40, 35 over the square root of 2048", properly, ["0.99", "0.88", "0.77"]),
        ),
        example=f"1/(1 + exp(-0.6) + exp(-1.1)) = {weights[0]:.4f}, which rounds to 0.53.",
        numbers={"row": shown(weights), "even": shown(even)},
    )


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
        numbers={"row": shown(weights), "low": min(found), "high": max(found)},
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
        numbers={"row": shown(weights)},
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
