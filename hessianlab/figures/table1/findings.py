"""What Table 1 says, measured."""

from __future__ import annotations

import numpy as np

from hessianlab.results import Findings, Result, Row
from hessianlab.results.table import numbers, select, short

TOLERANCE = 1e-6
"""A power agrees with the printed one within this."""


def deviations(result: Result) -> np.ndarray:
    """Measured minus printed power, of every block and draw."""
    rows = [row for row in result.rows() if row.get("printed") is not None]
    return numbers(rows, "value") - numbers(rows, "printed")


def tell(result: Result) -> list[str]:
    """Powers, factorisations, and what a rotation of the tokens does with softmax and without."""
    off = np.abs(deviations(result))
    gaps = numbers(select(result, quantity="factorisation gap"), "value")
    turned = {
        kind: numbers([r for r in select(result, quantity="change under rotation") if _softmax(r) == kind], "value")
        for kind in (False, True)
    }
    sentences = [
        f"{int((off < TOLERANCE).sum())} of {len(off)} measured powers of Sigma and Omega are the printed ones; the "
        f"largest difference is {short(float(off.max()))}.",
        "Written in Sigma, Omega and the weights alone, the blocks of both linear models come out with a relative gap "
        f"of {short(float(gaps.max()))} at most.",
    ]
    if len(turned[True]):
        sentences.append(
            "A rotation of the tokens that leaves Sigma and Omega as they are changes the linear models' blocks by "
            f"{short(float(turned[False].max()))} of their norm, those of softmax attention by "
            f"{short(float(turned[True].min()))} or more."
        )
    return sentences


def _softmax(row: Row) -> bool:
    return "softmax" in str(row["model"])


FINDINGS = Findings(tell)
