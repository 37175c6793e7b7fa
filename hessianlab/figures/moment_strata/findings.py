"""Moments and blocks from uniform to one-hot attention."""

from __future__ import annotations

import numpy as np

from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short

BLOCKS = ("outer VV", "outer QQ", "functional QQ")


def curve(result: Result, quantity: str, field: str = "value") -> np.ndarray:
    """A quantity by draw (rows) and factor on the query weights (columns, ascending)."""
    rows = select(result, quantity=quantity)
    seeds, factors = numbers(rows, "seed"), numbers(rows, "factor")
    order = np.lexsort((factors, seeds))
    return numbers(rows, field)[order].reshape(len(np.unique(seeds)), -1)


def tell(result: Result) -> list[str]:
    """How well moments rebuild blocks, and what is left of each block near one-hot attention."""
    gaps = max(numbers(select(result, quantity=name), "gap").max() for name in BLOCKS)
    share = curve(result, "entropy", "share_of_uniform").mean(0)
    sharpest = {name: curve(result, name)[:, -1] / curve(result, name)[:, 0] for name in BLOCKS}
    outer, functional = curve(result, "outer QQ").mean(0), curve(result, "functional QQ").mean(0)
    peak = int(functional.argmax())
    return [
        "Rebuilt from one attention moment each, the outer value block (M1), the outer query block (M2) and the "
        f"functional query block (M3) differ from the exact ones by {short(float(gaps))} of the norm of the whole "
        "Hessian at most: no more than rounding.",
        f"From the flattest attention (entropy {short(float(share[0]))} of uniform) to the sharpest "
        f"({short(float(share[-1]))}) the norm of the value block is multiplied by "
        f"{short(float(np.median(sharpest['outer VV'])))}, that of the outer query block by "
        f"{short(float(np.median(sharpest['outer QQ'])))} and that of the functional query block by "
        f"{short(float(np.median(sharpest['functional QQ'])))} (medians over draws).",
        f"The mean norm of the functional query block is largest at {share[peak]:.0%} of the uniform "
        f"entropy, {short(float(functional[peak] / functional[0]))} times its value at flat attention, and exceeds the "
        f"outer one at {int((functional > outer).sum())} of {len(outer)} factors.",
    ]


FINDINGS = Findings(tell)
