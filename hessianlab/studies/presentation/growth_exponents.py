"""Exponents of the block norms before and after training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from hessianlab.experiments.statistics import choices, select
from hessianlab.plots.picture import ResultPicture
from hessianlab.results import Chart, Panel, Result, Series
from hessianlab.studies.presentation.drawing import chart_picture, study_presentation
from hessianlab.studies.presentation.findings import BANDS, as_factor, interval_in_words, series, study_findings
from hessianlab.studies.presentation.paired import Interval, interval
from hessianlab.studies.training import EXPONENTS
from hessianlab.studies.training_study import TASKS
from hessianlab.wording import several, short

SERIES = (("q", "ggn"), ("q", "functional"), ("v", "ggn"))
NAMES = {("q", "ggn"): "outer query block", ("q", "functional"): "functional query block", ("v", "ggn"): "value block"}
RANGES = {"small": "small embeddings", "here": "embeddings as they are"}
WITHIN = 0.1
"""A power has survived if the whole interval of its change is within this."""


def looked_at(result: Result) -> list[int]:
    """Numbers of steps at which curvature was measured."""
    return sorted({int(row["step"]) for row in select(result, stage="growth")})


def exponents(result: Result, task: str, arm: str, which: tuple[str, str], where: str, step: int) -> dict[int, float]:
    """A power by seed, in the first layer."""
    block, part = which
    rows = select(
        result, task=task, arm=arm, stage="growth", step=step, block=f"layer0.attn.{block}", part=part, range=where
    )
    return {int(row["seed"]): float(row["exponent"]) for row in rows if row["exponent"] is not None}


def ratios(result: Result, task: str, arm: str, step: int) -> dict[int, float]:
    """Logarithm of the value block's root mean square eigenvalue over the query block's, by seed."""
    found: list[dict[int, float]] = []
    for block in ("v", "q"):
        rows = select(result, task=task, arm=arm, stage="curvature", step=step, block=f"layer0.attn.{block}")
        found.append({int(row["seed"]): float(row["rms"]) for row in rows})
    value, query = found
    return {s: math.log(value[s] / query[s]) for s in value.keys() & query.keys() if value[s] > 0 and query[s] > 0}


def change(before: Mapping[int, float], after: Mapping[int, float]) -> Interval:
    """After minus before, seed by seed."""
    return interval([after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())])


def sentences(result: Result) -> list[str]:
    """Which powers survived, and how the ratio moved."""
    first, last = looked_at(result)[0], looked_at(result)[-1]
    of_powers, of_ratios = [], []
    for task in choices(result, "task"):
        for where, named in (("small", "in the limit of small embeddings"), ("here", "at the embeddings' own scale")):
            lines = []
            for arm in choices(result, "arm"):
                moved = []
                for which in SERIES:
                    before, after = (exponents(result, task, arm, which, where, step) for step in (first, last))
                    if before and after:
                        first_power = interval(list(before.values())).mean
                        moved.append(
                            f"{NAMES[which]} {first_power:.2f}, change {interval_in_words(change(before, after))}"
                        )
                lines.append(f"{arm}: {', '.join(moved)}")
            of_powers.append(f"On {TASKS[task]}, powers {named}, before and after training: {'; '.join(lines)}.")
        moves = []
        for arm in choices(result, "arm"):
            before, after = (ratios(result, task, arm, step) for step in (first, last))
            start, found = interval(list(before.values())), change(before, after)
            if found.seeds > 1:
                moves.append(f"{arm} {short(math.exp(start.mean))}, times {as_factor(found)} at the end")
        if moves:
            of_ratios.append(
                f"On {TASKS[task]}, the value block's curvature over the query block's (root mean square eigenvalues) "
                f"before training: {'; '.join(moves)}."
            )
    survived = [arm for arm in choices(result, "arm") if _survives(result, arm, first, last)]
    return [
        f"All powers in the limit of small embeddings stay within {WITHIN} of what they were (95 % intervals) for "
        f"{several(survived) if survived else 'no arm'}.",
        *of_ratios,
        *of_powers,
    ]


def _survives(result: Result, arm: str, first: int, last: int) -> bool:
    moves = []
    for task in choices(result, "task"):
        for which in SERIES:
            before, after = (exponents(result, task, arm, which, "small", step) for step in (first, last))
            if before and after:
                found = change(before, after)
                moves.append(max(abs(found.low), abs(found.high)))
    return bool(moves) and all(move <= WITHIN for move in moves)


def intervals(result: Result) -> Mapping[str, Interval]:
    """Changes of powers and of ratios."""
    first, last = looked_at(result)[0], looked_at(result)[-1]
    found = {}
    for task in choices(result, "task"):
        for arm in choices(result, "arm"):
            for which, where in product(SERIES, RANGES):
                before, after = (exponents(result, task, arm, which, where, step) for step in (first, last))
                found[f"{task}: change of power, {arm}, {NAMES[which]}, {where}"] = change(before, after)
            before, after = (ratios(result, task, arm, step) for step in (first, last))
            found[f"{task}: log change of value over query, {arm}"] = change(before, after)
    return found


def power_chart(result: Result) -> Chart:
    """Powers along training on the first task; rows: arms, columns: the limit of small embeddings, and their scale."""
    task, steps = choices(result, "task")[0], looked_at(result)

    def course(arm: str, which: tuple[str, str], where: str) -> Series:
        found = (interval(list(exponents(result, task, arm, which, where, step).values())) for step in steps)
        return series(NAMES[which], zip(steps, found, strict=True))

    panels = tuple(
        Panel(f"{arm}: {named}", tuple(course(arm, which, where) for which in SERIES))
        for arm in choices(result, "arm")
        for where, named in RANGES.items()
    )
    about = f"Power with which attention's blocks grow when the embeddings are scaled, along training on {TASKS[task]}."
    return Chart(f"{about} {BANDS}", "steps", "power of the scale", panels, columns=len(RANGES))


def ratio_chart(result: Result) -> Chart:
    """The value block over the query block along training, a panel per task."""
    tasks, steps = choices(result, "task"), looked_at(result)

    def course(task: str, arm: str) -> Series:
        logs = (interval(list(ratios(result, task, arm, step).values())) for step in steps)
        kept = series(arm, zip(steps, logs, strict=True))
        return Series(arm, kept.x, *(tuple(map(math.exp, ends)) for ends in (kept.mean, kept.low, kept.high)))

    panels = tuple(Panel(TASKS[t], tuple(course(t, arm) for arm in choices(result, "arm")), log_y=True) for t in tasks)
    return Chart(
        "Root mean square eigenvalue of the value block over that of the query block, along training. Geometric means "
        "over seeds; bands are 95 % intervals.",
        "steps",
        "value block over query block",
        panels,
        columns=len(tasks),
    )


def survival_chart(result: Result) -> Chart:
    """What is asked to survive training: powers of the first arm, the ratio of the blocks, powers of the other arms."""
    powers, ratio = power_chart(result), ratio_chart(result)
    named = tuple(replace(panel, title=f"value block over query block, {panel.title}") for panel in ratio.panels[:1])
    powers_named = tuple(replace(panel, title=f"power, {panel.title}") for panel in powers.panels)
    panels = (*powers_named[: powers.columns], *named, *powers_named[powers.columns :])
    return Chart(f"{powers.caption} {ratio.caption}", powers.x_label, "", panels, columns=powers.columns)


FINDINGS = study_findings(EXPONENTS, sentences, intervals, survival_chart)


def power_pictures(result: Result) -> list[ResultPicture]:
    """Powers and ratios along training."""
    return [chart_picture("exponents", power_chart(result)), chart_picture("ratios", ratio_chart(result))]


PRESENTATIONS = {"study_exponents": study_presentation(FINDINGS, EXPONENTS, first=power_pictures)}
