"""The paired spectrum of the query-key part."""

from __future__ import annotations

from hessianlens.lab.results import Findings, Result
from hessianlens.lab.results.table import choices, numbers, select, short, span


def tell(result: Result) -> list[str]:
    """Pairing, multiplicity, and signs of the other part."""
    pairs = select(result, part="pairs")
    t_functional = select(result, part="t_functional")
    as_predicted = sum(
        row["multiplicity"] == row["predicted_multiplicity"] and own["rank"] == row["predicted_nonzero"]
        for row, own in zip(pairs, t_functional, strict=True)
    )
    half = sum(2 * int(row["negative"] or 0) == row["rank"] for row in t_functional)
    sentences = [
        f"In {len(pairs)} draws the eigenvalues of the T-functional Hessian are symmetric about zero to "
        f"{short(float(numbers(pairs, 'pairing_gap').max()))} of the largest and equal the closed form to "
        f"{short(float(numbers(pairs, 'closed_form_gap').max()))}.",
        f"{as_predicted} of {len(pairs)} draws have exactly 2 rank(B) d_K non-zero eigenvalues, each d_K times; in "
        f"{half} of them half are negative.",
    ]
    for activation in choices(result, "activation"):
        rows = select(result, part="t_outer", activation=activation)
        negative, size = numbers(rows, "negative"), int(numbers(rows, "size")[0])
        sentences.append(
            f"With {activation} the T-outer-product part has {span(negative)} negative eigenvalues of {size}: it is "
            + ("positive semi-definite." if negative.max() == 0 else "not positive semi-definite.")
        )
    return [*sentences[:2], " ".join(sentences[2:])]


FINDINGS = Findings(tell)
