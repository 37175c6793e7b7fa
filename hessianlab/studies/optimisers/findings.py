"""The gap between the optimisers, and whether curvature at initialisation tells where it is large."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.stats import spearmanr

from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.results.table import choices, select
from hessianlab.studies.optimisers.measure import EXPERIMENT, NORMS, SETTINGS, arm_name, gap
from hessianlab.trials.findings.charts import QUANTITIES, series
from hessianlab.trials.findings.paired import Interval, by_seed, difference, interval
from hessianlab.trials.findings.reading import study_findings
from hessianlab.trials.findings.sentences import as_factor
from hessianlab.trials.measure.config import TASKS


def spreads(result: Result, task: str, attention: str, norm: str | None) -> list[float]:
    """Logarithm of the largest over the smallest root mean square eigenvalue of the blocks, seed by seed."""
    arm = arm_name(attention, norm, "adam")
    rows = select(result, task=task, arm=arm, stage="curvature", step=0)
    found = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        sizes = [float(str(row["rms"])) for row in rows if row["seed"] == seed]
        kept = [size for size in sizes if size > 0]
        if kept:
            found.append(math.log(max(kept) / min(kept)))
    return found


def rank_correlation(x: list[float], y: list[float]) -> float:
    """Spearman's.

    >>> rank_correlation([1.0, 2.0, 3.0], [2.0, 5.0, 9.0]), rank_correlation([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    (1.0, -1.0)
    """
    return float(round(spearmanr(x, y).statistic, 12))


def tell(result: Result) -> list[str]:
    """Heterogeneity beside the gap, and their rank correlation, which six settings cannot decide."""
    sentences = []
    for task in choices(result, "task"):
        told, heterogeneity, gaps = [], [], []
        for attention, norm in SETTINGS:
            spread, found = (
                interval(spreads(result, task, attention, norm)),
                difference(result, task, gap(attention, norm)),
            )
            if spread.seeds and found.seeds:
                heterogeneity.append(spread.mean)
                gaps.append(found.mean)
                told.append(f"{attention}, {NORMS[norm]}: {as_factor(spread)}")
        if len(gaps) < 3:
            continue
        sentences.append(
            f"On {TASKS[task]}, the largest block curvature over the smallest at initialisation is, by setting, "
            f"{'; '.join(told)} (95 % intervals). Its rank correlation with the gap between SGD and Adam is "
            f"{rank_correlation(heterogeneity, gaps):.2f} over {len(gaps)} settings; with six, only one beyond 0.89 "
            "would be more than chance at 5 %."
        )
    return sentences


def intervals(result: Result) -> Mapping[str, Interval]:
    """Heterogeneity at initialisation."""
    return {
        f"{task}: log block spread, {attention}, {NORMS[norm]}": interval(spreads(result, task, attention, norm))
        for task in choices(result, "task")
        for attention, norm in SETTINGS
    }


def ends(result: Result) -> Chart:
    """Losses at the end of training by setting, a series an optimiser."""
    tasks, optimisers = choices(result, "task"), {"sgd": "SGD", "adam": "Adam"}

    def of_one(task: str, optimiser: str) -> Series:
        arms = [arm_name(attention, norm, optimiser) for attention, norm in SETTINGS]
        return series(optimisers[optimiser], enumerate(interval(list(by_seed(result, task, a).values())) for a in arms))

    return Chart(
        "Validation loss at the end of training, each arm at its own tuned learning rate: means over seeds and 95 % "
        "intervals.",
        "",
        QUANTITIES["loss"],
        tuple(Panel(TASKS[task], tuple(of_one(task, optimiser) for optimiser in optimisers)) for task in tasks),
        columns=len(tasks),
        names=tuple(f"{attention}, {NORMS[norm]}" for attention, norm in SETTINGS),
    )


FINDINGS = study_findings(EXPERIMENT, tell, intervals, ends)
