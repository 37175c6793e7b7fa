"""Training studies in sentences, and as charts in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations, product
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
    interval_of,
    of_condition,
    plain_config,
    record,
    study_comparisons,
    study_levels,
    study_lost,
    tried,
)
from hessianlab.studies.training_study import TASKS, Contrast, Study, TrialConfig, chosen_conditions
from hessianlab.wording import MINUS, several, short
from hessianlens.sizes import number_of


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
            f"{name}: {what} {interval_in_words(found)} over {number_of(found.seeds, 'seed')}, "
            f"effect size {signed(found.effect)}"
        )
    return (
        f"{name}: no difference in {what} found, {interval_in_words(found)}; {number_of(found.seeds, 'seed')} would "
        f"have shown one of {short(found.detectable)} with probability 80 %"
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
        f"Models of {number_of(result.config['layers'], 'block')} and width {result.config['d_model']}, "
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


Recorded = Mapping[str, Any]
"""What is recorded of a result."""


def recorded_difference(recorded: Recorded, condition: str, task: str, comparison: Contrast) -> Interval | None:
    """A difference in loss under a condition, the study's own settings if empty; None if it is not recorded."""
    found = recorded["conditions"][condition] if condition else recorded
    row = found["intervals"].get(f"{task}: loss, {comparison.name}")
    return interval_of(row) if row else None


def condition_sentences(recorded: Recorded, study: Study) -> list[str]:
    """Every comparison of losses under every condition, a sentence per task and comparison; then by width."""
    found = []
    for task, comparison in product(recorded["config"]["tasks"], study.comparisons):
        measured = {name: recorded_difference(recorded, name, task, comparison) for name in recorded["conditions"]}
        parts = [f"{interval_in_words(value)} with {name}" for name, value in measured.items() if value]
        own = recorded_difference(recorded, "", task, comparison)
        if parts and own:
            found.append(
                f"On {TASKS[task]}, loss, {comparison.name}: {interval_in_words(own)} with the settings above; "
                f"{'; '.join(parts)}."
            )
    return [*found, *width_sentences(recorded, study)]


SAME_AT_ANY_WIDTH = ("d_model", "steps", "seeds", "tuning_seeds", "rates", "curvatures")
"""Settings in which two conditions may differ and still show a trend with the width, if the steps are as many."""


def width_sentences(recorded: Recorded, study: Study) -> list[str]:
    """Every comparison at two widths, after as many steps."""
    config, changes = recorded["config"], {"": {}} | {n: one["changes"] for n, one in recorded["conditions"].items()}
    found = []
    for wide, narrow in permutations(changes, 2):
        here, there = ({**config, **changes[name]} for name in (wide, narrow))
        if "d_model" not in changes[wide] or "d_model" in changes[narrow] or here["steps"] != there["steps"]:
            continue
        if set(changes[wide]) | set(changes[narrow]) <= set(SAME_AT_ANY_WIDTH):
            found += _by_width(recorded, study, (narrow, wide), (there["d_model"], here["d_model"]), here["steps"])
    return found


def _by_width(
    recorded: Recorded, study: Study, conditions: tuple[str, str], widths: tuple[int, int], steps: int
) -> list[str]:
    sentences = []
    for task in recorded["config"]["tasks"]:
        parts = []
        for comparison in study.comparisons:
            pair = [recorded_difference(recorded, name, task, comparison) for name in conditions]
            if all(pair):
                shown = [f"{interval_in_words(v)} at {w}" for v, w in zip(pair, widths, strict=True) if v is not None]
                parts.append(f"{comparison.name} {', '.join(shown)}")
        if parts:
            sentences.append(f"On {TASKS[task]}, loss after {steps} steps by width: {'; '.join(parts)}.")
    return sentences


def condition_chart(recorded: Recorded, study: Study) -> Chart:
    """Every comparison of losses by condition, a panel per task."""
    conditions = ["", *recorded["conditions"]]

    def line(task: str, comparison: Contrast) -> Series:
        found = (recorded_difference(recorded, name, task, comparison) for name in conditions)
        return series(comparison.name, ((x, one) for x, one in enumerate(found) if one is not None))

    return Chart(
        "Differences in validation loss at the end of training, paired over seeds, by condition; every arm is tuned "
        "and trained anew under each. Marks are means, bars 95 % intervals.",
        "",
        "difference in loss (nats)",
        tuple(
            Panel(TASKS[task], tuple(line(task, one) for one in study.comparisons))
            for task in recorded["config"]["tasks"]
        ),
        columns=1,
        names=tuple(name or "as stated" for name in conditions),
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
        in_record: What is recorded of a result, beside what is recorded already of the same settings (or nothing).
        chart: What the study asks about, in numbers, under its own settings.
        table: Lines of a table, by heading; none where sentences say it all.
        conditions: The differences in loss by condition; None if no other condition was tried.
    """

    in_record: Callable[[Result, Recorded], dict[str, Any]]
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
        return list(in_record(result, {})["sentences"])

    def picture(result: Result) -> Chart:
        return chart(of_condition(result))

    def by_condition(result: Result) -> Chart | None:
        return condition_chart(in_record(result, {}), study) if tried(result, study) else None

    def in_record(result: Result, known: Recorded) -> dict[str, Any]:
        own = of_condition(result)
        here = {
            condition.name: {
                "changes": dict(condition.changes),
                **in_numbers(*numbers(of_condition(result, condition))),
            }
            for condition in tried(result, study)
        }
        others = in_their_order({**known_conditions(known, result), **here}, study)
        preset, config = result.preset, dict(result.config)
        if others.keys() != here.keys():
            preset, config = settings_of(study, {**config, "conditions": tuple(others)}, preset)
        levels, compared, lost = numbers(own)
        protocol = study.statement(TrialConfig(**config))
        found = record(own, levels, compared, (), picture(result), lost, others, protocol)
        found |= {"preset": preset, "config": plain_config(config)}
        words = [*study_sentences(own, study, extra(own)), *condition_sentences(found, study)]
        charts = {"condition_chart": condition_chart(found, study).plain()} if others else {}
        return {**found, "sentences": words, **charts}

    return StudyFindings(sentences, in_record, picture, conditions=by_condition)


def known_conditions(known: Recorded, result: Result) -> Mapping[str, Any]:
    """Conditions that are recorded of the same settings: they stay beside those that are tried now."""
    if not known:
        return {}
    one, other = ({**config, "conditions": ()} for config in (known["config"], plain_config(result.config)))
    return known["conditions"] if one == other else {}


def in_their_order(found: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Conditions as the study lists them."""
    return {one.name: found[one.name] for one in study.conditions if one.name in found}


def settings_of(study: Study, config: Mapping[str, Any], otherwise: str) -> tuple[str, dict[str, Any]]:
    """The preset with these settings and conditions, as it writes them; the settings under another name if none is."""
    for name, preset in study.presets.items():
        names = tuple(one.name for one in chosen_conditions(preset, study.conditions)[1:])
        if {**asdict(preset), "conditions": names} == dict(config):
            return name, asdict(preset)
    return otherwise, dict(config)
