"""One query-key matrix against two."""

from __future__ import annotations

import numpy as np

from hessianlab.results import Findings, Result
from hessianlab.results.table import numbers, select, short

NAMES = {"dual": "two matrices", "single": "one matrix"}


def tell(result: Result) -> list[str]:
    """Same function, other curvature: signs, rank, conditioning and gradients."""
    rows = {name: select(result, parameters=name, part="full") for name in NAMES}
    gap = float(numbers(rows["dual"], "output_gap").max())
    share = {name: 100 * numbers(found, "negative_share").mean() for name, found in rows.items()}
    count = {name: 100 * (numbers(f, "negative") / numbers(f, "size")).mean() for name, f in rows.items()}
    condition = {name: float(np.median(numbers(found, "condition"))) for name, found in rows.items()}
    norm, gradient = (numbers(rows["dual"], field) / numbers(rows["single"], field) for field in ("norm", "gradient"))
    return [
        f"Outputs agree to {short(gap)}. Negative eigenvalues make up {share['dual']:.0f} % of the absolute spectrum "
        f"(and {count['dual']:.0f} % of all eigenvalues) with two matrices, {share['single']:.0f} % "
        f"({count['single']:.0f} %) with one.",
        f"The norm of the query-key Hessian with two matrices is {short(float(norm.min()))} to "
        f"{short(float(norm.max()))} times that with one, the norm of the gradient {short(float(gradient.min()))} to "
        f"{short(float(gradient.max()))} times.",
        "The median condition number on the directions that are curved is "
        + ", ".join(f"{short(condition[name])} with {text}" for name, text in NAMES.items())
        + ".",
    ]


FINDINGS = Findings(tell)
