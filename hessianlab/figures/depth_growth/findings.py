"""Exponents by depth of linear MLPs and of chained linear attention, against what counting predicts."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hessianlab.growth.findings.exponents import FitRange, Slope, agreement, fit_slope
from hessianlab.growth.findings.series import Series, growth_series
from hessianlab.results import Findings, Result
from hessianlab.results.table import short
from hessianlab.wording import several
from hessianlens.theory import linear_attention_growth, linear_mlp_growth

FAMILIES = {"linear MLP": ("mlp", "full"), "linear attention": ("query", "outer")}
"""Block and part that stand for a family, of the last layer; an MLP's block has no functional part."""

PREDICTED = {"linear MLP": linear_mlp_growth, "linear attention": linear_attention_growth}


class DepthExponent(NamedTuple):
    """The exponent of a family at one depth."""

    family: str
    depth: int
    slope: Slope
    predicted: int
    agrees: bool | None
    series: Series


def depth_exponents(result: Result) -> list[DepthExponent]:
    """Every family and depth: the block of the last layer over the whole range of scales."""
    found = []
    everywhere = FitRange("all", 0.0, float("inf"))
    for family, wanted in FAMILIES.items():
        for key, series in growth_series(result).items():
            if key.last and (key.block, key.part) == wanted:
                slope, predicted = fit_slope(series, everywhere), PREDICTED[family](key.depth)
                agrees = agreement(slope, series.vanishes, predicted)
                found.append(DepthExponent(family, key.depth, slope, predicted, agrees, series))
    return found


def tell(result: Result) -> list[str]:
    """The exponents, what a further layer does to them, and what that means for a block's size."""
    every = depth_exponents(result)
    by_family = {family: [e for e in every if e.family == family] for family in FAMILIES}
    told = "; ".join(
        f"{family}, depth {several([str(e.depth) for e in own])}: {several([_measured(e) for e in own])} "
        f"(predicted {several([str(e.predicted) for e in own])})"
        for family, own in by_family.items()
    )
    decided = [e for e in every if e.agrees is not None]
    verdict = (
        f"{sum(bool(e.agrees) for e in decided)} of {len(decided)} agree with the prediction"
        if decided
        else "These draws are too few to decide whether they agree"
    )
    left = f", {len(every) - len(decided)} cannot be decided" if 0 < len(decided) < len(every) else ""
    sentences = [f"Power of the data's scale in the block of the last layer. {told}. {verdict}{left}."]
    for family, own in by_family.items():
        steps = [
            float(later.slope.measured or 0) / earlier.slope.measured
            for earlier, later in pairwise(own)
            if earlier.slope.measured
        ]
        deepest = own[-1]
        if steps and deepest.slope.measured is not None:
            sentences.append(
                f"{family[0].upper()}{family[1:]}: a further layer multiplies the power by "
                f"{several([f'{step:.2f}' for step in steps])}; doubling the data's scale multiplies the block at "
                f"depth {deepest.depth} by {short(2**deepest.slope.measured)}."
            )
    return sentences


def _measured(found: DepthExponent) -> str:
    return "none" if found.slope.measured is None else f"{found.slope.measured:.2f}"


FINDINGS = Findings(tell)
