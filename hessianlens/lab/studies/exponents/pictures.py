"""Powers and block ratios along training."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hessianlens.lab.plots.picture import Picture
from hessianlens.lab.plots.style import log_axis, panels
from hessianlens.lab.results import Result
from hessianlens.lab.results.table import choices
from hessianlens.lab.studies.exponents.findings import NAMES, SERIES, exponents, looked_at, ratios
from hessianlens.lab.studies.exponents.measure import EXPERIMENT
from hessianlens.lab.trials.findings.paired import Interval, interval
from hessianlens.lab.trials.measure.config import TASKS
from hessianlens.lab.trials.pictures.drawing import look_of, study_pictures


def draw_exponents(result: Result) -> Figure:
    """Rows: arms. Columns: the limit of small embeddings, and the scale that they have."""
    arms, steps, task = choices(result, "arm"), looked_at(result), choices(result, "task")[0]
    ranges = {"small": "small embeddings", "here": "embeddings as they are"}
    with panels(2, len(arms), width=4.2, height=2.8, sharex=True) as (figure, all_axes):
        for row, arm in enumerate(arms):
            for column, (where, named) in enumerate(ranges.items()):
                axes = all_axes[2 * row + column]
                for place, series in enumerate(SERIES):
                    found = [list(exponents(result, task, arm, series, where, s).values()) for s in steps]
                    if all(len(values) > 1 for values in found):
                        _band(axes, steps, [interval(values) for values in found], place, NAMES[series])
                axes.set_title(f"{arm}: {named}")
        for axes in all_axes[-2:]:
            axes.set_xlabel("steps")
        for axes in all_axes[::2]:
            axes.set_ylabel("power of the scale")
        handles, labels = all_axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def draw_ratios(result: Result) -> Figure:
    """Value over query block, by arm."""
    tasks, steps = choices(result, "task"), looked_at(result)
    with panels(len(tasks), width=4.6, height=3.4) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for place, arm in enumerate(choices(result, "arm")):
                found = [list(ratios(result, task, arm, step).values()) for step in steps]
                if all(len(values) > 1 for values in found):
                    logs = [interval(values) for values in found]
                    _band(axes, steps, logs, place, arm, powers=True)
            log_axis(axes, "y")
            axes.set_title(TASKS[task])
            axes.set_xlabel("steps")
        all_axes[0].set_ylabel("value block over query block")
        all_axes[0].legend()
    return figure


def _band(axes: object, steps: list[int], found: list[Interval], place: int, label: str, powers: bool = False) -> None:
    shown = (lambda values: np.exp(values)) if powers else np.array
    colour, style = look_of(place)
    low, mean, high = (shown([getattr(one, end) for one in found]) for end in ("low", "mean", "high"))
    axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)  # type: ignore[attr-defined]
    axes.plot(steps, mean, color=colour, linestyle=style, marker="o", markersize=4, label=label)  # type: ignore[attr-defined]


def draw_all(result: Result, _reference: object = None) -> list[Picture]:
    """Powers and ratios first."""
    task = TASKS[choices(result, "task")[0]]
    return [
        Picture(
            "exponents",
            draw_exponents(result),
            f"Power with which attention's blocks grow when the embeddings are scaled, along training on {task}: means "
            "over seeds and 95 % intervals.",
        ),
        Picture(
            "ratios",
            draw_ratios(result),
            "Root mean square eigenvalue of the value block over that of the query block, along training: geometric "
            "means over seeds and 95 % intervals.",
        ),
        *study_pictures(result, EXPERIMENT),
    ]
