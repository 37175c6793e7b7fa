"""Training studies in sentences, and as charts in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.statistics import choices, select
from hessianlab.results import Chart, Findings, Panel, Result, Series
from hessianlab.studies.presentation.paired import (
    Interval,
    by_seed,
    difference,
    diverged,
    in_numbers,
    interval,
    of_condition,
    record,
    study_comparisons,
    study_levels,
    study_lost,
    tried,
)
from hessianlab.studies.training_study import TASKS, Condition, Contrast, Study, TrialConfig
from hessianlab.wording import MINUS, count, several, short


def signed(value: float) -> str:
    """Three digits with a sign.

    >>> signed(0.1234), signed(-2.0)
    ('+0.123', '−2')
    """
    return f"{'+' if value >= 0 else MINUS}{short(abs(value))}"


def interval_in_words(found: Interval) -> str:
    """A mean with its interval.

    >>> interval_in_words(Interval(0.5, 0.25, 0.75, 5, 0.3))
    '+0.5 [+0.25, +0.75]'
    """
    if math.isnan(found.mean):
        return "not measured"
    if math.isnan(found.low):
        return f"{signed(found.mean)} (one seed)"
    return f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


def as_factor(found: Interval) -> str:
    """A mean logarithm and its interval, as a factor.

    >>> as_factor(Interval(0.0, math.log(0.5), math.log(2.0), 5, 0.3))
    '1 [0.5, 2]'
    """
    if found.seeds < 2:
        return "an unknown number of"
    return f"{short(math.exp(found.mean))} [{short(math.exp(found.low))}, {short(math.exp(found.high))}]"


def compared(found: Interval, what: str, name: str) -> str:
    """One comparison: what it found, or how large a difference it would have found.

    >>> compared(Interval(-0.01, -0.05, 0.03, 5, 0.06), "loss", "a minus b")
    'a minus b: no difference in loss found, −0.01 [−0.05, +0.03]; 5 seeds would have shown one of 0.06 ...'
    """
    if found.seeds < 2 or math.isnan(found.low):
        return f"{name}: fewer than two seeds have a {what}, and nothing can be said"
    if found.decided:
        return (
            f"{name}: {what} {interval_in_words(found)} over {count(found.seeds, 'seed')}, "
            f"effect size {signed(found.effect)}"
        )
    return (
        f"{name}: no difference in {what} found, {interval_in_words(found)}; {count(found.seeds, 'seed')} would have "
        f"shown one of {short(found.detectable)} with probability 80 %"
    )


def level_sentences(result: Result) -> list[str]:
    """The losses and accuracies of all arms, a sentence per task, and what diverged."""
    sentences = []
    for task in choices(result, "task"):
        levels = []
        for arm in choices(result, "arm"):
            losses = interval(list(by_seed(result, task, arm).values()))
            rights = list(by_seed(result, task, arm, "accuracy").values())
            lost = diverged(result, task, arm)
            gone = f"; {lost} of {lost + losses.seeds} diverged" if lost else ""
            if not losses.seeds:
                levels.append(f"{arm} all {lost} diverged")
                continue
            half = (losses.high - losses.low) / 2
            levels.append(f"{arm} {short(losses.mean)} ± {short(half)} ({100 * sum(rights) / len(rights):.0f} %{gone})")
        sentences.append(
            f"On {TASKS[task]}, validation loss after {result.config['steps']} steps (and share "
            f"{'of whole answers' if task == 'addition' else 'of tokens'} right): {'; '.join(levels)}."
        )
    return sentences


def comparison_sentences(result: Result, comparisons: Sequence[Contrast], quantity: str = "loss") -> list[str]:
    """Every comparison on every task."""
    sentences = []
    for task in choices(result, "task"):
        parts = [compared(difference(result, task, one, quantity), quantity, one.name) for one in comparisons]
        sentences.append(f"On {TASKS[task]}, paired over seeds: {'; '.join(parts)}.")
    return sentences


def caveats(result: Result) -> list[str]:
    """What limits the comparisons: rates at the edge of the tuning range, runs that diverged, many comparisons."""
    steps, found = result.config["steps"], []
    edges = [row for row in select(result, stage="final", step=steps) if row["rate_at_edge"]]
    named = list(dict.fromkeys(f"{row['arm']} ({row['task']})" for row in edges))
    if named:
        found.append(
            f"The best learning rate lies at the edge of the tuning range for {several(named)}: more tuning might help "
            "them, and the comparison may be unfair to them."
        )
    lost = [
        f"{arm} ({task})"
        for task in choices(result, "task")
        for arm in choices(result, "arm")
        if diverged(result, task, arm)
    ]
    if lost:
        found.append(f"Runs that diverged are left out of means and differences, which favours {several(lost)}.")
    found.append(
        f"Models of {count(result.config['layers'], 'block')} and width {result.config['d_model']}, "
        f"{result.config['steps']} steps, {result.config['seeds']} seeds; intervals are Student's at 95 % and not "
        "adjusted for the number of comparisons; an effect size is a mean difference over the standard deviation of "
        "the differences."
    )
    return found


def study_sentences(result: Result, study: Study, extra: Sequence[str] = ()) -> list[str]:
    """All of it: what is special of a study first, then comparisons, levels and caveats."""
    return [
        *extra,
        *comparison_sentences(result, study.comparisons),
        *level_sentences(result),
        *caveats(result),
    ]


def condition_sentences(result: Result, study: Study) -> list[str]:
    """Every comparison of losses under every condition, a sentence per task and comparison."""
    found = []
    for task in choices(result, "task"):
        there = [one for one in tried(result, study) if one.on(task)]
        for comparison in study.comparisons if there else ():
            measured = [(one, difference(of_condition(result, one), task, comparison)) for one in there]
            parts = [f"{interval_in_words(value)} with {one.name}" for one, value in measured if value.seeds]
            if not parts:
                continue
            own = interval_in_words(difference(of_condition(result), task, comparison))
            found.append(
                f"On {TASKS[task]}, loss, {comparison.name}: {own} with the settings above; {'; '.join(parts)}."
            )
    return found


def condition_chart(result: Result, study: Study) -> Chart:
    """Every comparison of losses by condition, a panel per task."""
    conditions = [Condition(), *tried(result, study)]

    def line(task: str, comparison: Contrast) -> Series:
        found = (difference(of_condition(result, one), task, comparison) for one in conditions)
        return series(comparison.name, enumerate(found))

    tasks = choices(result, "task")
    return Chart(
        "Differences in validation loss at the end of training, paired over seeds, by condition; every arm is tuned "
        "and trained anew under each. Marks are means, bars 95 % intervals.",
        "",
        "difference in loss (nats)",
        tuple(Panel(TASKS[task], tuple(line(task, one) for one in study.comparisons)) for task in tasks),
        columns=1,
        names=tuple(condition.name or "as stated" for condition in conditions),
    )


BANDS = "Means over seeds; bands are 95 % intervals."

QUANTITIES = {
    "loss": "validation loss (nats)",
    "accuracy": "share right",
    "entropy": "entropy of attention / uniform",
}

_ABOUT = {
    "loss": "Validation loss along training at the tuned learning rate.",
    "accuracy": "Share that is right along training at the tuned learning rate.",
    "entropy": "Entropy of the rows of attention over that of equal weights, mean over rows, heads and layers: 1 is "
    "uniform, 0 is one-hot. Weights that are no distribution are taken by their sizes.",
}


def series(name: str, points: Iterable[tuple[float, Interval]]) -> Series:
    """Of the points that have an interval."""
    kept = [(x, found) for x, found in points if found.seeds > 1]
    ends = (tuple(getattr(found, end) for _, found in kept) for end in ("mean", "low", "high"))
    return Series(name, tuple(x for x, _ in kept), *ends)


def courses(result: Result, quantity: str = "loss", arms: Sequence[str] | None = None) -> Chart:
    """A quantity along training, a panel per task and a series per arm."""
    tasks, shown = choices(result, "task"), list(arms or choices(result, "arm"))
    panels = tuple(Panel(TASKS[t], tuple(_course(result, t, arm, quantity) for arm in shown)) for t in tasks)
    return Chart(f"{_ABOUT[quantity]} {BANDS}", "steps", QUANTITIES[quantity], panels, columns=len(tasks))


def _course(result: Result, task: str, arm: str, quantity: str, name: str = "") -> Series:
    steps = sorted({int(row["step"]) for row in select(result, task=task, arm=arm, stage="final")})
    found = (interval(list(by_seed(result, task, arm, quantity, step).values())) for step in steps)
    return series(name or arm, zip(steps, found, strict=True))


def quantity_panel(result: Result, task: str, quantity: str) -> Panel:
    """A quantity along training on one task, which the title names, a series per arm."""
    arms = choices(result, "arm")
    return Panel(f"{QUANTITIES[quantity]}, {TASKS[task]}", tuple(_course(result, task, arm, quantity) for arm in arms))


def gain_panel(result: Result, task: str, arm: str, quantities: Sequence[str], title: str) -> Panel:
    """Several quantities of one arm along training, a series per layer."""
    lines = (_course(result, task, arm, name, f"layer {n}") for n, name in enumerate(quantities))
    return Panel(f"{title}, {TASKS[task]}", tuple(lines))


@dataclass(frozen=True)
class StudyFindings(Findings):
    """Sentences, the numbers behind them as they are recorded, and the chart that shows the answer.

    Attributes:
        in_record: What is recorded of a result.
        chart: What the study asks about, in numbers, under its own settings.
        table: Lines of a table, by heading; none where sentences say it all.
        conditions: The differences in loss by condition; None if no other condition was tried.
    """

    in_record: Callable[[Result], dict[str, Any]]
    chart: Callable[[Result], Chart]
    table: Callable[[Result], list[dict[str, str]]] = lambda result: []
    conditions: Callable[[Result], Chart | None] = lambda result: None


def study_findings(
    study: Study,
    extra: Callable[[Result], list[str]] = lambda result: [],
    extra_intervals: Callable[[Result], Mapping[str, Interval]] = lambda result: {},
    chart: Callable[[Result], Chart] = courses,
) -> StudyFindings:
    """The findings of a study: what all of them tell, and what is special of this one."""

    def numbers(result: Result) -> tuple[dict[str, Interval], dict[str, Interval], dict[str, int]]:
        levels = {**study_levels(result), **extra_intervals(result)}
        return levels, study_comparisons(result, study), study_lost(result)

    def sentences(result: Result) -> list[str]:
        own = of_condition(result)
        return [*study_sentences(own, study, extra(own)), *condition_sentences(result, study)]

    def picture(result: Result) -> Chart:
        return chart(of_condition(result))

    def by_condition(result: Result) -> Chart | None:
        return condition_chart(result, study) if tried(result, study) else None

    def in_record(result: Result) -> dict[str, Any]:
        own = of_condition(result)
        levels, compared, lost = numbers(own)
        others = {
            condition.name: {
                "changes": dict(condition.changes),
                **in_numbers(*numbers(of_condition(result, condition))),
            }
            for condition in tried(result, study)
        }
        protocol = study.statement(TrialConfig(**result.config))
        words, conditions = sentences(result), by_condition(result)
        return record(own, levels, compared, words, picture(result), lost, others, protocol, conditions)

    return StudyFindings(sentences, in_record, picture, conditions=by_condition)
