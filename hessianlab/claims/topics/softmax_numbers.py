"""Softmax of rows of numbers, as the article on softmax prints them."""

from __future__ import annotations

import math

from hessianlab.claims.definition import claim, first_seed
from hessianlab.claims.finding import Finding, as_printed, at_most, close, true
from hessianlab.claims.samples import fixed, normal, shown
from hessianlab.claims.score_rows import apart, softmax

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
        told={"row": shown(true_row), "low": low, "high": high},
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
        told={"the": the, "cat": cat},
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
        told={"row": shown(weights)},
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
        told={"row": shown(weights), "even": shown(even)},
    )
