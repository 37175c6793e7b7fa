"""Exponents of the token scale by activation."""

from __future__ import annotations

from hessianlab.results import Findings, Result
from hessianlab.results.table import choices, numbers, select, short
from hessianlab.wording import activation_in_words

TOLERANCE = 0.05
"""A measured exponent agrees with the predicted one within this."""


def agreements(result: Result) -> dict[tuple[str, str, str], bool]:
    """Whether all draws of an activation, part and block have the predicted exponent, or vanish as predicted."""
    found: dict[tuple[str, str, str], bool] = {}
    for row in result.rows():
        key = str(row["activation"]), str(row["part"]), str(row["block"])
        found[key] = found.get(key, True) and _agrees(row["exponent"], row["predicted"])
    return found


def _agrees(exponent: object, predicted: object) -> bool:
    if not isinstance(exponent, float) or not isinstance(predicted, int):
        return exponent is None and predicted is None
    return abs(exponent - predicted) <= TOLERANCE


def tell(result: Result) -> list[str]:
    """Agreement with the prediction, and which activations share the heterogeneity of softmax."""
    agree = agreements(result)
    rows = [row for row in result.rows() if row["exponent"] is not None and row["predicted"] is not None]
    off = abs(numbers(rows, "exponent") - numbers(rows, "predicted"))
    wrong = [" ".join(key) for key, good in agree.items() if not good]
    verdict = f" It fails for {', '.join(wrong)}." if wrong else ""
    spreads = {name: _outer_gap(result, name) for name in choices(result, "activation")}
    unlike = [f"{activation_in_words(name)} ({short(gap)})" for name, gap in spreads.items() if gap > 0.5]
    uniform = [activation_in_words(name) for name, gap in spreads.items() if gap <= 0.5]
    return [
        f"{sum(agree.values())} of {len(agree)} combinations of activation, part and block grow as the activation near "
        f"zero predicts; the largest difference of an exponent is {short(float(off.max()))}.{verdict}",
        f"The outer-product query block grows faster than the value block with {', '.join(unlike) or 'none'} "
        f"(difference of exponents), and at the same rate with {', '.join(uniform) or 'none'}.",
    ]


def _outer_gap(result: Result, activation: str) -> float:
    """Mean exponent of the outer QQ block minus that of the outer VV block."""
    query, value = (
        numbers(select(result, activation=activation, part="outer", block=block), "exponent").mean()
        for block in ("QQ", "VV")
    )
    return float(query - value)


FINDINGS = Findings(tell)
