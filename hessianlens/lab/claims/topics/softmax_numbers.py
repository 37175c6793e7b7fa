"""Softmax of rows of numbers, as the article on softmax prints them."""

from __future__ import annotations

import math

from hessianlens.lab.claims.check import as_printed, at_most, close, true
from hessianlens.lab.claims.definition import claim
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.score_rows import apart, normal, shown, softmax

CAT = (2.8, 1.2, 0.5, 3.1)
"""Scores of "cat", "sat", "on", "the"."""

CAT_PRINTED = (".28", ".06", ".03", ".38")


@claim(
    "C1",
    source="The solution: converting scores to probabilities",
    statement="The softmax of the scores 2.8, 1.2, 0.5, 3.1 is 0.28, 0.06, 0.03, 0.38.",
    method="softmax in float64, rounded to the two digits printed",
)
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
        correction=(
            f"The softmax of these four scores is {shown(true_row)}. The printed numbers have the right ratios but "
            "add up to 0.75: they would be the weights of these four tokens in a row of five, where a further token "
            f"with a score between {low:.2f} and {high:.2f} takes the missing quarter. The example sentence does have "
            "a fifth token, its first word."
        ),
        example=f"exp of the scores: {', '.join(f'{math.exp(s):.2f}' for s in CAT)}; their sum is "
        f"{sum(map(math.exp, CAT)):.2f}, so 'the' gets {math.exp(CAT[3]):.2f}/{sum(map(math.exp, CAT)):.2f} = "
        f"{true_row[3]:.2f}, not 0.38.",
    )


def _hidden_scores() -> tuple[float, float]:
    """The scores of a fifth token with which the other four round to the printed numbers."""
    seen = [math.exp(score) for score in CAT]
    printed = [float(text) for text in CAT_PRINTED]
    most = min(e / (p - 0.005) for e, p in zip(seen, printed, strict=True))
    least = max(e / (p + 0.005) for e, p in zip(seen, printed, strict=True))
    return math.log(least - sum(seen)), math.log(most - sum(seen))


@claim(
    "C2",
    source="The solution: three properties",
    statement="The weights of that example sum to 1: 38 % of attention goes to 'the' and 28 % to 'cat'.",
    method="sum of the printed numbers, whose rounding explains at most 0.02; softmax of the four scores in "
    "float64; sums of 300 random rows of 2 to 50 scores",
)
def cat_shares(seed: int = 0) -> Finding:
    """Softmax sums to one, the printed numbers do not."""
    cat, _, _, the = softmax(CAT)
    rows = [normal(seed + n, 100, n).mul(10) for n in (2, 9, 50)]
    worst = max(float((scores.softmax(-1).sum(-1) - 1).abs().max()) for scores in rows)
    return Finding(
        checks=(
            close("sum of the printed numbers", sum(map(float, CAT_PRINTED)), 1.0, 0.02),
            as_printed("shares of 'the' and 'cat'", [the, cat], ["0.38", "0.28"]),
        ),
        support=(at_most("largest distance of a softmax row's sum from 1", worst, 1e-14),),
        correction=(
            "Softmax rows do sum to 1, to rounding error. The printed ones sum to 0.75, because they are not the "
            f"softmax of the four scores (C1): {the:.0%} goes to 'the' and {cat:.0%} to 'cat'."
        ),
        example=f"0.28 + 0.06 + 0.03 + 0.38 = 0.75; {' + '.join(f'{p:.2f}' for p in softmax(CAT))} = 1.00.",
    )


@claim(
    "C11",
    source="Brain teaser 1, scenario A",
    statement="The softmax of 10, 9, 8 is 0.47, 0.33, 0.20.",
    method="softmax in float64, rounded to the two digits printed; every temperature from 0.01 to 100 in steps of 1 %",
)
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
        correction=(
            f"It is {shown(weights)}. Softmax depends on differences alone, so 10, 9, 8 and 3, 2, 1 have the same "
            "softmax; the article's section on temperature prints it correctly for the latter. No temperature gives "
            "the numbers printed here."
        ),
        example=f"exp(0) = 1, exp(-1) = {math.exp(-1):.3f}, exp(-2) = {math.exp(-2):.3f}; "
        f"1/{1 + math.exp(-1) + math.exp(-2):.3f} = {weights[0]:.3f}, not 0.47.",
    )


@claim(
    "C12",
    source="Brain teaser 1, scenario B",
    statement="The softmax of 100, 9, 8 is about 1, 0, 0.",
    method="softmax in float64; about means to one digit after the point",
)
def far_ahead() -> Finding:
    """The second weight is exp(-91)."""
    weights = softmax([100, 9, 8])
    return Finding(
        checks=(
            as_printed("softmax", weights, ["1.0", "0.0", "0.0"]),
            at_most("weight of the second token", weights[1], 1e-39),
        )
    )


@claim(
    "C15",
    source="Brain teaser 2, large scores",
    statement="The softmax of 45, 40, 35 is 0.993, 0.007, 0.000.",
    method="softmax in float64, rounded to the three digits printed",
)
def unscaled_scores() -> Finding:
    """As printed."""
    return Finding(checks=(as_printed("softmax", softmax([45, 40, 35]), ["0.993", "0.007", "0.000"]),))


@claim(
    "C16",
    source="Brain teaser 2, small scores",
    statement="The softmax of 5, 4.4, 3.9, smaller scores beside 45, 40, 35, is 0.54, 0.29, 0.17.",
    method="softmax in float64, rounded to the two digits printed; 45, 40, 35 over the square root of 2048, the "
    "width that the article gives for scores of 45",
)
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
        correction=(
            f"The softmax of 5, 4.4, 3.9 is {shown(weights)}: two last digits are off by one. These scores are 45, "
            "40, 35 divided by 9, as for a width of 81; the same section gives scores of 45 for a width of "
            f"2048, where the divisor is 45.25 and the weights become {shown(even)}."
        ),
        example=f"1/(1 + exp(-0.6) + exp(-1.1)) = {weights[0]:.4f}, which rounds to 0.53.",
    )


CLAIMS = (cat_sentence, cat_shares, steps_of_one, far_ahead, unscaled_scores, scaled_scores)
