"""Attention, the derivative of softmax and the blocks along the path of temperatures."""

from __future__ import annotations

import numpy as np

from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short
from hessianlab.wording import power_of_ten

QUERY, VALUE = "full QQ", "outer VV"
"""The query and the value block; the value block has no functional part."""


def temperatures(result: Result) -> np.ndarray:
    """The temperatures that were measured, highest first."""
    return np.unique(numbers(result.rows(), "temperature"))[::-1]


def path(result: Result, quantity: str, field: str = "value") -> np.ndarray:
    """A quantity by draw (rows) and temperature (columns, highest first)."""
    rows = select(result, quantity=quantity)
    seeds, hot = numbers(rows, "seed"), numbers(rows, "temperature")
    order = np.lexsort((-hot, seeds))
    return numbers(rows, field)[order].reshape(len(np.unique(seeds)), -1)


def middle(values: np.ndarray) -> np.ndarray:
    """The median over draws, a temperature at a time: near one-hot attention single draws underflow to zero."""
    return np.median(values, axis=0)


def tell(result: Result) -> list[str]:
    """What becomes of attention and of the derivative of softmax, of both blocks, and of their ratio."""
    hot = temperatures(result)
    share = path(result, "entropy", "share_of_uniform").mean(0)
    slope, query, value = (middle(path(result, name)) for name in ("derivative", QUERY, VALUE))
    peak = int(query.argmax())
    with np.errstate(divide="ignore"):
        ratio = value / query
    larger = {side: "value" if ratio[at] > 1 else "query" for side, at in _places(ratio).items()}
    if larger["hot"] == larger["cold"] != larger["least"]:
        verdict = f"the {larger['hot']} block is the larger one at both ends, the {larger['least']} block in between"
    else:
        verdict = (
            f"the {larger['hot']} block is the larger one at the hot end, the {larger['cold']} block at the cold one"
        )
    return [
        f"From temperature {short(hot[0])} to {short(hot[-1])} attention goes from {share[0]:.0%} to {share[-1]:.1%} "
        "of the uniform entropy, and the derivative of softmax (without its factor 1/t) falls to "
        f"{short(slope[-1] / slope.max())} of its largest norm.",
        f"The query block is largest at temperature {short(hot[peak])}, with attention at {share[peak]:.0%} of the "
        f"uniform entropy; it has {short(query[0] / query[peak])} of that norm at the hot end and "
        f"{short(query[-1] / query[peak])} at the cold end. The value block is multiplied by "
        f"{short(value[-1] / value[0])} from end to end.",
        f"The value block is {_times(ratio[0])} times the query block at the hot end, {_times(ratio.min())} times "
        f"where it is least (temperature {short(hot[ratio.argmin()])}) and {_times(ratio[-1])} times at the cold end "
        f"(medians of {len(path(result, QUERY))} draws): {verdict}.",
    ]


def _times(ratio: float) -> str:
    return short(float(ratio)) if ratio < _IMMENSE else f"more than {power_of_ten(np.log10(_IMMENSE))}"


def _places(ratio: np.ndarray) -> dict[str, int]:
    return {"hot": 0, "least": int(ratio.argmin()), "cold": len(ratio) - 1}


_IMMENSE = 1e12
"""Larger ratios are told as a bound."""

FINDINGS = Findings(tell)
