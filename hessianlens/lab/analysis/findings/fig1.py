"""What Figure 1 shows."""

from __future__ import annotations

from math import log10

from hessianlens.lab.analysis.findings.table import block_ratios, geometric, numbers, select, short, span
from hessianlens.lab.results import Result


def findings(result: Result) -> list[str]:
    """The two-orders claim, what dominates the query block, and how far two ways to the same matrix agree."""
    median, rms = block_ratios(result, kind="blocks"), block_ratios(result, "rms", kind="blocks")
    by_part = {
        part: geometric(numbers(select(result, kind="blocks", block="query", part=part), "norm"))
        for part in ("outer", "functional")
    }
    query = geometric(numbers(select(result, kind="blocks", block="query", part="full"), "median"))
    value = geometric(numbers(select(result, kind="blocks", block="value", part="full"), "median"))
    sentences = [
        f"The median absolute entry of the value block is {short(geometric(median))} times that of the query block "
        f"({span(median)} over {len(median)} draws of the weights), {log10(geometric(median)):.1f} orders of "
        f"magnitude; by root mean square it is {short(geometric(rms))} times.",
        f"The medians themselves are {short(query)} (query) and {short(value)} (value); the functional part of the "
        f"query block has {short(by_part['functional'] / by_part['outer'])} times the norm of its outer-product part.",
    ]
    for row in select(result, block="attention"):
        sentences.append(
            "The attention part of the map, in closed form, and the same entries from matrix-free products differ by "
            f"{short(float(row['gap'] or 0))} of the largest entry at most."
        )
    return sentences
