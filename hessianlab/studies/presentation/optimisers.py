"""Training studies of optimisers: SGD's gap to Adam beside the heterogeneity of blocks, and rates per block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import choices, rank_correlation, select
from hessianlab.plots.picture import ResultPicture
from hessianlab.plots.style import INK, log_axis, panels
from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.studies.presentation.drawing import chart_picture, legend_below, look_of, study_presentation
from hessianlab.studies.presentation.findings import QUANTITIES, as_factor, interval_in_words, series, study_findings
from hessianlab.studies.presentation.paired import Interval, by_seed, difference, interval
from hessianlab.studies.training import (
    ADAM,
    BLOCK_RATES,
    MEASURED,
    NORMS,
    OPTIMISERS,
    SEARCHED,
    SETTINGS,
    SGD,
    arm_name,
    gap,
)
from hessianlab.studies.training_study import TASKS, minus
from hessianlab.wording import percent


def spreads(result: Result, task: str, attention: str, norm: str | None) -> list[float]:
    """Logarithm of the largest over the smallest root mean square eigenvalue of the blocks, seed by seed."""
    arm = arm_name(attention, norm, "adam")
    rows = select(result, task=task, arm=arm, stage="curvature", step=0)
    found = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        sizes = [float(row["rms"]) for row in rows if row["seed"] == seed]
        kept = [size for size in sizes if size > 0]
        if kept:
            found.append(math.log(max(kept) / min(kept)))
    return found


def optimisers_sentences(result: Result) -> list[str]:
    """Heterogeneity beside the gap, and their rank correlation, which six settings cannot decide."""
    sentences = []
    for task in choices(result, "task"):
        by_setting, heterogeneity, gaps = [], [], []
        for attention, norm in SETTINGS:
            spread, found = (
                interval(spreads(result, task, attention, norm)),
                difference(result, task, gap(attention, norm)),
            )
            if spread.seeds and found.seeds:
                heterogeneity.append(spread.mean)
                gaps.append(found.mean)
                by_setting.append(f"{attention}, {NORMS[norm]}: {as_factor(spread)}")
        if len(gaps) < 3:
            continue
        sentences.append(
            f"On {TASKS[task]}, the largest block curvature over the smallest at initialisation is, by setting, "
            f"{'; '.join(by_setting)} (95 % intervals). Its rank correlation with the gap between SGD and Adam is "
            f"{rank_correlation(heterogeneity, gaps)[0]:.2f} over {len(gaps)} settings; with six, only one beyond 0.89 "
            "would be more than chance at 5 %."
        )
    return sentences


def optimisers_intervals(result: Result) -> Mapping[str, Interval]:
    """Heterogeneity at initialisation."""
    return {
        f"{task}: log block spread, {attention}, {NORMS[norm]}": interval(spreads(result, task, attention, norm))
        for task in choices(result, "task")
        for attention, norm in SETTINGS
    }


def ends(result: Result) -> Chart:
    """Losses at the end of training by setting, a series per optimiser."""
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


def _on(task: str, tasks: Sequence[str]) -> str:
    """The task, for the title of a panel, where there is more than one."""
    return f", {TASKS[task]}" if len(tasks) > 1 else ""


def gap_chart(result: Result) -> Chart:
    """Adam's advantage by setting, and the heterogeneity of the blocks at initialisation by the same settings."""

    def heterogeneity(task: str) -> Series:
        found = (interval(spreads(result, task, attention, norm)) for attention, norm in SETTINGS)
        logs = series("block ratio", enumerate(found))
        return Series(logs.name, logs.x, *(tuple(map(math.exp, each)) for each in (logs.mean, logs.low, logs.high)))

    tasks = choices(result, "task")
    panels_of = [
        (
            Panel(
                f"loss of SGD minus loss of Adam (nats){_on(task, tasks)}",
                (series("gap", enumerate(difference(result, task, gap(*setting)) for setting in SETTINGS)),),
            ),
            Panel(f"largest over smallest block curvature{_on(task, tasks)}", (heterogeneity(task),), log_y=True),
        )
        for task in tasks
    ]
    return Chart(
        "Loss of SGD minus that of Adam at the end of training, each at its own tuned learning rate, and the largest "
        "over the smallest root mean square eigenvalue of the Hessian's blocks at initialisation, by setting: means "
        "over seeds and 95 % intervals.",
        "",
        "",
        tuple(panel for pair in panels_of for panel in pair),
        columns=2,
        names=tuple(f"{attention}, {NORMS[norm]}" for attention, norm in SETTINGS),
    )


OPTIMISERS_FINDINGS = study_findings(OPTIMISERS, optimisers_sentences, optimisers_intervals, gap_chart)


def draw_relation(result: Result) -> Figure:
    """A mark per setting, with intervals both ways."""
    tasks = choices(result, "task")
    with panels(len(tasks), width=4.8, height=4.2) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for place, (attention, norm) in enumerate(SETTINGS):
                spread, found = (
                    interval(spreads(result, task, attention, norm)),
                    difference(result, task, gap(attention, norm)),
                )
                if spread.seeds < 2 or found.seeds < 2:
                    continue
                colour, _ = look_of(place)
                middle = float(np.exp(spread.mean))
                axes.plot(np.exp([spread.low, spread.high]), [found.mean] * 2, color=colour, linewidth=1.4)
                axes.plot([middle] * 2, [found.low, found.high], color=colour, linewidth=1.4)
                axes.plot([middle], [found.mean], "o", color=colour, label=f"{attention}, {NORMS[norm]}")
            axes.axhline(0, color=INK, linewidth=1)
            log_axis(axes, "x")
            axes.set_title(TASKS[task])
            axes.set_xlabel("largest over smallest block curvature at initialisation")
        all_axes[0].set_ylabel("loss of SGD minus loss of Adam (nats)")
        handles, labels = all_axes[0].get_legend_handles_labels()
        legend_below(figure, dict(zip(labels, handles, strict=True)))
    return figure


def relation_pictures(result: Result) -> list[ResultPicture]:
    """The gap against the heterogeneity of the blocks, and losses at the end."""
    relation = ResultPicture(
        "relation",
        draw_relation(result),
        "Gap between the optimisers at the end of training against the heterogeneity of the Hessian's blocks at "
        "initialisation (root mean square eigenvalue of each weight's own block). Marks are means over seeds, bars "
        "95 % intervals.",
    )
    return [relation, chart_picture("ends", ends(result))]


def block_rates_sentences(result: Result) -> list[str]:
    """The closed part, where there is a gap."""
    sentences = []
    for task in choices(result, "task"):
        gap = difference(result, task, minus(SGD, ADAM))
        closed = difference(result, task, minus(SGD, MEASURED))
        if gap.seeds < 2 or closed.seeds < 2:
            continue
        if not gap.decided or gap.mean <= 0:
            sentences.append(f"On {TASKS[task]}, Adam is not shown to be ahead of SGD, so there is no gap to close.")
        elif not closed.decided:
            sentences.append(f"On {TASKS[task]}, rates by curvature are not shown to close any of SGD's gap to Adam.")
        elif closed.mean < 0:
            sentences.append(
                f"On {TASKS[task]}, rates by curvature make SGD worse, and close nothing of its gap to Adam."
            )
        else:
            sentences.append(
                f"On {TASKS[task]}, rates by curvature close {percent(closed.mean / gap.mean)} of SGD's gap to Adam: "
                f"{interval_in_words(closed)} of {interval_in_words(gap)} nats."
            )
        searched = difference(result, task, minus(SEARCHED, SGD))
        if searched.seeds > 1 and searched.low == searched.high == 0:
            sentences.append(f"On {TASKS[task]}, a search with the same budget found no rates better than equal ones.")
    return sentences


PRESENTATIONS = {
    "study_optimisers": study_presentation(OPTIMISERS_FINDINGS, OPTIMISERS, first=relation_pictures),
    "study_block_rates": study_presentation(study_findings(BLOCK_RATES, block_rates_sentences), BLOCK_RATES),
}
