"""The gap between the optimisers, and beside it the unlikeness of blocks at initialisation."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hessianlab.plots.picture import Picture
from hessianlab.plots.style import INK, log_axis, panels
from hessianlab.results import Result
from hessianlab.results.table import choices
from hessianlab.studies.optimisers.findings import ends, spreads
from hessianlab.studies.optimisers.measure import EXPERIMENT, NORMS, SETTINGS, gap
from hessianlab.trials.findings.paired import difference, interval
from hessianlab.trials.measure.config import TASKS
from hessianlab.trials.pictures.charts import legend_below, look_of
from hessianlab.trials.pictures.drawing import chart_picture, study_pictures


def draw_relation(result: Result) -> Figure:
    """A mark a setting, with intervals both ways."""
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


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """The relation first."""
    relation = Picture(
        "relation",
        draw_relation(result),
        "Gap between the optimisers at the end of training against the unlikeness of the Hessian's blocks at "
        "initialisation (root mean square eigenvalue of each weight's own block). Marks are means over seeds, bars "
        "95 % intervals.",
    )
    return [relation, chart_picture("ends", ends(result)), *study_pictures(result, EXPERIMENT)]
