"""What Figure 1 shows."""

from __future__ import annotations

from math import log10

from hessianlab.experiments.common.means import geometric_mean
from hessianlab.results import Findings, Result
from hessianlab.results.table import block_ratios, numbers, select, short, span


def tell(result: Result) -> list[str]:
    """The two-orders claim, what dominates the query block, and how far two ways to the same matrix agree."""
    median, rms = block_ratios(result, kind="blocks"), block_ratios(result, "rms", kind="blocks")
    by_part = {
        part: geometric_mean(numbers(select(result, kind="blocks", block="query", part=part), "norm"))
        for part in ("outer", "functional")
    }
    query = geometric_mean(numbers(select(result, kind="blocks", block="query", part="full"), "median"))
    value = geometric_mean(numbers(select(result, kind="blocks", block="value", part="full"), "median"))
    sentences = [
        f"The median absolute entry of the value block is {short(geometric_mean(median))} times that of the query "
        f"block ({span(median)} over {len(median)} draws of the weights), {log10(geometric_mean(median)):.1f} orders "
        f"of magnitude; by root mean square it is {short(geometric_mean(rms))} times.",
        f"The medians themselves are {short(query)} (query) and {short(value)} (value); the functional part of the "
        f"query block has {short(by_part['functional'] / by_part['outer'])} times the norm of its outer-product part.",
    ]
    for row in select(result, block="attention"):
        sentences.append(
            "The attention part of the map, in closed form, and the same entries from matrix-free products differ by "
            f"{short(float(row['gap'] or 0))} of the largest entry at most."
        )
    return sentences


FINDINGS = Findings(tell)
