"""Drawings of training studies: charts, differences with intervals, courses of training, tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessianlab.experiments.statistics import choices, numbers, select
from hessianlab.plots.picture import Presentation, ResultPicture
from hessianlab.plots.style import INK, MUTED, OBJECTS, PURPLE, SKY, log_axis, panels
from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.studies.presentation.findings import QUANTITIES, StudyFindings, courses
from hessianlab.studies.presentation.paired import difference, of_condition
from hessianlab.studies.training_study import TASKS, Contrast, Study

Line: TypeAlias = str | tuple[float, tuple[float, float]]

COLOURS = (INK, PURPLE, SKY, MUTED)
OWN_COLOURS = {"queries": OBJECTS["query"], "keys": OBJECTS["key"], "values": OBJECTS["value"]}
"""Weight matrices have a colour each, on every page; other series take the colours that no matrix has."""
STYLES: tuple[Line, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)))

SHAPES = ("o", "s", "^", "D")
"""Of marks: colours repeat with another shape."""

_APART, _WIDEST = 0.18, 0.8
"""Between the marks of two series at one name, and the most for all of them together."""

_LEAST_SPAN = 0.02
"""Of an axis, over its largest value."""


def look_of(place: int) -> tuple[str, Line]:
    """Colour and line of a series, by its place in the legend: colours repeat with another line."""
    return COLOURS[place % len(COLOURS)], STYLES[place // len(COLOURS) % len(STYLES)]


def draw_chart(chart: Chart, width: float = 4.4, height: float = 3.4) -> Figure:
    """All panels, each of the given size in inches, and one legend; panels of different series have one each."""
    rows = -(-len(chart.panels) // chart.columns)
    if _slanted(chart.names):
        width, height = max(width, 0.8 * len(chart.names)), height + 0.9
    height += 0.2 * max(0, len(chart.legend) - _LEGEND_ROWS) / rows
    with panels(chart.columns, rows, width=width, height=height) as (figure, all_axes):
        for axes, panel in zip(all_axes, chart.panels, strict=False):
            _draw_panel(axes, panel, chart)
        for axes in all_axes[len(chart.panels) :]:
            axes.set_axis_off()
        for axes in all_axes[: len(chart.panels)][-chart.columns :]:
            axes.set_xlabel(chart.x_label)
        for axes in all_axes[:: chart.columns]:
            axes.set_ylabel(chart.y_label)
        if any(set(chart.legend) - {series.name for series in panel.series} for panel in chart.panels):
            for axes in all_axes[: len(chart.panels)]:
                axes.legend(fontsize=8)
            return figure
        shown: dict[str, Artist] = {}
        for axes in all_axes:
            shown |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        legend_below(figure, {name: shown[name] for name in chart.legend if name in shown})
    return figure


def legend_below(figure: Figure, shown: Mapping[str, Artist]) -> None:
    """One legend for all axes, in as many columns as there is room for."""
    inches = 0.6 + 0.09 * max(map(len, shown), default=0)
    columns = max(1, min(len(shown), 4, int(figure.get_figwidth() / inches)))
    figure.legend(list(shown.values()), list(shown), loc="outside lower center", ncols=columns)


def _draw_panel(axes: Axes, panel: Panel, chart: Chart) -> None:
    for series in panel.series:
        place = chart.legend.index(series.name)
        if chart.names:
            apart = min(_APART, _WIDEST / len(chart.legend))
            _marks(axes, series, place, apart * (place - (len(chart.legend) - 1) / 2))
        else:
            _band(axes, series, place)
    if panel.log_y:
        log_axis(axes, "y")
    else:
        _no_magnifier(axes)
    if _slanted(chart.names):
        axes.set_xticks(
            range(len(chart.names)), chart.names, fontsize=8, rotation=30, ha="right", rotation_mode="anchor"
        )
    elif chart.names:
        axes.set_xticks(range(len(chart.names)), [_name_in_lines(name) for name in chart.names], fontsize=8)
    axes.set_title(panel.title)


_ROOM = 60
"""Letters of names of equal length that fit side by side under an axis."""

_LEGEND_ROWS = 4
"""Lines of a legend for which there is room below a chart."""


def _slanted(names: Sequence[str]) -> bool:
    """Whether names are too long to stand side by side.

    >>> _slanted(("softmax", "linear")), _slanted(("a constant rate without warm-up",) * 4)
    (False, True)
    """
    return max(map(len, names), default=0) * len(names) > _ROOM


def _no_magnifier(axes: Axes) -> None:
    """What is equal but for rounding is shown as equal."""
    low, high = axes.get_ylim()
    middle, least = (low + high) / 2, _LEAST_SPAN * max(abs(low), abs(high))
    if high - low < least:
        axes.set_ylim(middle - least / 2, middle + least / 2)


def _band(axes: Axes, series: Series, place: int) -> None:
    colour, style = look_of(place)
    colour = OWN_COLOURS.get(series.name, colour)
    axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.15, linewidth=0)
    marker = "o" if len(series.x) < 8 else None
    axes.plot(series.x, series.mean, color=colour, linestyle=style, marker=marker, markersize=4, label=series.name)


def _marks(axes: Axes, series: Series, place: int, shift: float) -> None:
    colour = OWN_COLOURS.get(series.name, look_of(place)[0])
    at = [x + shift for x in series.x]
    axes.vlines(at, series.low, series.high, color=colour, linewidth=1.6)
    shape = SHAPES[place // len(COLOURS) % len(SHAPES)]
    axes.plot(at, series.mean, shape, color=colour, markersize=5, label=series.name)


def _name_in_lines(name: str) -> str:
    return name.replace(", ", ",\n").replace("_", "\n")


def draw_differences(result: Result, comparisons: Sequence[Contrast], quantity: str = "loss") -> Figure:
    """Every comparison with its interval, a panel per task; filled marks leave out zero."""
    tasks = choices(result, "task")
    height = 1.3 + 0.34 * len(comparisons)
    with panels(len(tasks), width=5.6 if len(tasks) == 1 else 4.2, height=height, sharey=True) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for y, comparison in enumerate(comparisons):
                found = difference(result, task, comparison, quantity)
                if found.seeds < 2:
                    axes.text(0, y, "diverged", ha="center", va="center", color=MUTED)
                    continue
                fill = INK if found.decided else "white"
                axes.plot([found.low, found.high], [y, y], color=INK, linewidth=2)
                axes.plot([found.mean], [y], "o", color=INK, markerfacecolor=fill, markersize=7)
            axes.axvline(0, color=INK, linewidth=1)
            axes.set_yticks(range(len(comparisons)), [_comparison_in_lines(one.name) for one in comparisons])
            axes.set_ylim(len(comparisons) - 0.5, -0.5)
            axes.set_title(TASKS[task])
            axes.set_xlabel("difference in loss (nats)" if quantity == "loss" else f"difference in {quantity}")
    return figure


def _comparison_in_lines(name: str) -> str:
    return name.replace(" minus ", "\nminus ") if len(name) > 22 else name


def draw_tuning(result: Result) -> Figure:
    """The loss of the seeds that tune against the learning rate: mean and range; rates that diverged are left out."""
    tasks, arms = choices(result, "task"), choices(result, "arm")
    with panels(len(tasks), width=4.4, height=3.4) as (figure, all_axes):
        for axes, task in zip(all_axes, tasks, strict=True):
            for place, arm in enumerate(arms):
                rows = [r for r in select(result, task=task, arm=arm, stage="tuning") if r["loss"] is not None]
                rates = sorted({float(row["rate"]) for row in rows})
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


def _none(result: Result) -> list[ResultPicture]:
    return []


Draw = Callable[[Result], list[ResultPicture]]


def study_presentation(findings: StudyFindings, study: Study, first: Draw = _none, last: Draw = _none) -> Presentation:
    """Findings and pictures of a training study: what every study shows, with its own pictures before or after it."""

    def draw(result: Result, _reference: object = None) -> list[ResultPicture]:
        own = of_condition(result)
        by_condition = findings.conditions(result)
        conditions = [chart_picture("conditions", by_condition)] if by_condition else []
        return [*first(own), *conditions, *_study_pictures(own, study), *last(own)]

    return Presentation(findings, draw)


def _study_pictures(result: Result, study: Study) -> list[ResultPicture]:
    return [
        ResultPicture(
            "differences",
            draw_differences(result, study.comparisons),
            "Differences in validation loss at the end of training, paired over seeds, with Student's 95 % interval; "
            "an open mark: the interval holds zero, and no difference was found.",
        ),
        chart_picture("courses", courses(result)),
        ResultPicture(
            "tuning",
            draw_tuning(result),
            "How the learning rate was chosen: validation loss at the end of training of the seeds that tune; lines "
            "join means, bars reach over the seeds. Rates at which all of them diverged are left out.",
        ),
    ]


def chart_picture(name: str, chart: Chart) -> ResultPicture:
    """A chart, drawn; its caption says what it shows."""
    return ResultPicture(name, draw_chart(chart), chart.caption)


def entropy_pictures(result: Result) -> list[ResultPicture]:
    """How spread out attention is, along training."""
    return [chart_picture("entropy", courses(result, "entropy"))]
