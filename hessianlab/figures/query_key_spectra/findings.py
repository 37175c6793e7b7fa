"""Where the negative eigenvalues of the query-key part come from."""

from __future__ import annotations

from hessianlab.results import Findings, Result
from hessianlab.results.table import choices, numbers, select, short, span

NAMES = {"outer": "G", "functional": "H − G", "full": "H"}
"""Parts by the letters readers know: Hessian H and Gauss-Newton matrix G."""


def tell(result: Result) -> list[str]:
    """Shares of negative eigenvalues by part with two matrices and with one; the pairs; what is left without them."""
    return [_shares(result), _pairs(result), _rest(result)]


def negative_share(result: Result, activation: str, matrices: str, part: str) -> float:
    """The share of the negative ones in the sum of all absolute eigenvalues, mean over draws."""
    rows = select(result, activation=activation, matrices=matrices, part=part)
    return float(numbers(rows, "negative_share").mean())


def _shares(result: Result) -> str:
    told = []
    for activation in choices(result, "activation"):
        found = {
            count: {part: negative_share(result, activation, count, part) for part in NAMES} for count in ("two", "one")
        }
        by_part = "; ".join(
            f"{name} {100 * found['two'][part]:.0f} % with two matrices, {100 * found['one'][part]:.0f} % with one"
            for part, name in NAMES.items()
        )
        told.append(f"With {activation}: {by_part}")
    outer = numbers(select(result, part="outer"), "negative")
    verdict = (
        "no negative eigenvalue comes from G, all of them from H − G"
        if outer.max() == 0
        else f"G itself has up to {outer.max():.0f} negative eigenvalues"
    )
    return f"Share of negative eigenvalues in the sum of all absolute ones. {'. '.join(told)}. So {verdict}."


def _pairs(result: Result) -> str:
    pairs, t_functional = select(result, part="pairs"), select(result, part="t_functional")
    as_predicted = sum(
        row["multiplicity"] == row["predicted_multiplicity"]
        and own["rank"] == row["predicted_nonzero"]
        and 2 * int(own["negative"] or 0) == own["rank"]
        for row, own in zip(pairs, t_functional, strict=True)
    )
    return (
        f"In {as_predicted} of {len(pairs)} draws the T-functional part, which only two matrices have, has exactly "
        "2 rank(B) d_K non-zero eigenvalues, each d_K times, half of them negative; they are symmetric about zero to "
        f"{short(float(numbers(pairs, 'pairing_gap').max()))} of the largest and equal the closed form to "
        f"{short(float(numbers(pairs, 'closed_form_gap').max()))}."
    )


def _rest(result: Result) -> str:
    told = []
    for activation in choices(result, "activation"):
        negative = numbers(select(result, part="t_outer", activation=activation), "negative")
        size = int(numbers(select(result, part="t_outer", activation=activation), "size")[0])
        left = (
            "positive semi-definite"
            if negative.max() == 0
            else f"not positive semi-definite ({span(negative)} of {size} eigenvalues are negative)"
        )
        told.append(f"With {activation} what is left without them, the T-outer-product part, is {left}.")
    return " ".join(told)


FINDINGS = Findings(tell)
