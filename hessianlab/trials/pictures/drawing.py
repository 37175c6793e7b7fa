"""What every study draws: differences with intervals, courses of trainings, and how the learning rate was chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from hessianlab.plots.picture import Picture
from hessianlab.plots.style import BLUE, INK, MUTED, log_axis, panels
from hessianlab.results import Chart, Result
from hessianlab.results.table import choices, numbers, select
from hessianlab.trials.findings.charts import QUANTITIES, courses
from hessianlab.trials.findings.paired import difference
from hessianlab.trials.measure import Comparison, Study
from hessianlab.trials.measure.config import TASKS
from hessianlab.trials.pictures.charts import draw_chart, legend_below, look_of


def draw_differences(result: Result, comparisons: Sequence[Comparison], quantity: str = "loss") -> Figure:
    """Every comparison with its interval, a panel a task; filled marks leave out zero."""
    tasks = choices(result, "task")
    height = 1.3 + 0.34 * len(comparisons)
    with panels(len(tasks), width=5.6 if len(tasks) == 1 else 4.2, height=height, sharey=True) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for y, comparison in enumerate(comparisons):
                found = difference(result, task, comparison, quantity)
                if found.seeds < 2:
                    axes.text(0, y, "diverged", ha="center", va="center", color=MUTED)
                    continue
                fill = BLUE if found.decided else "white"
                axes.plot([found.low, found.high], [y, y], color=BLUE, linewidth=2)
                axes.plot([found.mean], [y], "o", color=BLUE, markerfacecolor=fill, markersize=7)
            axes.axvline(0, color=INK, linewidth=1)
            axes.set_yticks(range(len(comparisons)), [_broken(one.name) for one in comparisons])
            axes.set_ylim(len(comparisons) - 0.5, -0.5)
            axes.set_title(TASKS[task])
            axes.set_xlabel("difference in loss (nats)" if quantity == "loss" else f"difference in {quantity}")
    return figure


def _broken(name: str) -> str:
    return name.replace(" minus ", "\nminus ") if len(name) > 22 else name


def draw_tuning(result: Result) -> Figure:
    """The loss of the seeds that tune against the learning rate: mean and range; rates that diverged are left out."""
    tasks, arms = choices(result, "task"), choices(result, "arm")
    with panels(len(tasks), width=4.4, height=3.4) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for place, arm in enumerate(arms):
                rows = [r for r in select(result, task=task, arm=arm, stage="tuning") if r["loss"] is not None]
                rates = sorted({float(str(row["rate"])) for row in rows})
                losses = [numbers([row for row in rows if row["rate"] == rate], "loss") for rate in rates]
                colour, style = look_of(place)
                means = [float(np.mean(found)) for found in losses]
                axes.plot(rates, means, marker="o", markersize=4, color=colour, linestyle=style, label=arm)
                for rate, found in zip(rates, losses, strict=True):
                    axes.plot([rate, rate], [found.min(), found.max()], color=colour, linewidth=1)
            log_axis(axes, "x")
            axes.set_title(TASKS[task])
            axes.set_xlabel("learning rate")
        all_axes[0].set_ylabel(QUANTITIES["loss"])
        handles, labels = all_axes[0].get_legend_handles_labels()
        legend_below(figure, dict(zip(labels, handles, strict=True)))
    return figure


def study_pictures(result: Result, study: Study) -> list[Picture]:
    """What every study shows."""
    return [
        Picture(
            "differences",
            draw_differences(result, study.comparisons),
            "Differences in validation loss at the end of training, paired over seeds, with Student's 95 % interval; "
            "an open mark: the interval holds zero, and no difference was found.",
        ),
        chart_picture("courses", courses(result)),
        Picture(
            "tuning",
            draw_tuning(result),
            "How the learning rate was chosen: validation loss at the end of training of the seeds that tune; lines "
            "join means, bars reach over the seeds. Rates at which all of them diverged are left out.",
        ),
    ]


def chart_picture(name: str, chart: Chart) -> Picture:
    """A chart, drawn; its caption says what it shows."""
    return Picture(name, draw_chart(chart), chart.caption)


def entropy_picture(result: Result) -> Picture:
    """How spread out attention is, along training."""
    return chart_picture("entropy", courses(result, "entropy"))
