"""Training studies of attention: activations, scaling, a learned temperature, one query-key matrix or two."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from hessianlab.experiments.statistics import choices, numbers, select
from hessianlab.results import Chart, Result
from hessianlab.studies.presentation.drawing import entropy_pictures, study_presentation
from hessianlab.studies.presentation.findings import (
    BANDS,
    as_factor,
    compared,
    gain_panel,
    quantity_panel,
    study_findings,
)
from hessianlab.studies.presentation.paired import Interval, by_seed, difference, interval, slowdown, weighted
from hessianlab.studies.training import (
    ACTIVATIONS,
    LEARNED,
    OTHERS,
    QUERY_KEY,
    SCALED,
    SCALING,
    SOFTMAX,
    TEMPERATURE,
    UNSCALED,
)
from hessianlab.studies.training_study import LEAST_SEEDS, TASKS

NEAR, NEAR_NATS = 0.1, 0.05
"""A learning rate works if its loss is above the best of the same arm and seed by no more than this share of it, or by
no more than so many nats: a share of a loss near zero says nothing."""


def activations_sentences(result: Result) -> list[str]:
    """Who is worse, who is better, who cannot be distinguished."""
    sentences = []
    for task in choices(result, "task"):
        groups: dict[str, list[str]] = {"ends worse": [], "ends better": [], "cannot be distinguished from softmax": []}
        for comparison in ACTIVATIONS.comparisons:
            found = difference(result, task, comparison)
            place = (
                "cannot be distinguished from softmax"
                if not found.decided
                else "ends worse"
                if found.low > 0
                else "ends better"
            )
            groups[place].append(comparison.arms[0].replace("_", " "))
        text = "; ".join(f"{place}: {', '.join(names)}" for place, names in groups.items() if names)
        sentences.append(f"On {TASKS[task]}, against softmax at its own tuned rate: {text}.")
    return sentences


def activations_intervals(result: Result) -> Mapping[str, Interval]:
    """Loss and share right over those of softmax, minus 1; and the share of rates that work, and minus softmax's."""
    found = {}
    for task in choices(result, "task"):
        for quantity, name in product(("loss", "accuracy"), OTHERS):
            base, other = (by_seed(result, task, arm, quantity) for arm in (SOFTMAX, name))
            relative = [other[s] / base[s] - 1 for s in sorted(other.keys() & base.keys()) if base[s] > 0]
            found[f"{task}: relative {quantity}, {name} over softmax"] = interval(relative)
        for name in (SOFTMAX, *OTHERS):
            shares = {arm: workable(result, task, arm) for arm in (name, SOFTMAX)}
            found[f"{task}: share of rates that work, {name}"] = interval(list(shares[name].values()))
            apart = weighted(shares, {name: 1.0, SOFTMAX: -1.0}) if name != SOFTMAX else []
            # two seeds that agree by chance have an interval of no width
            if len(apart) >= LEAST_SEEDS:
                found[f"{task}: share of rates that work, {name} minus softmax"] = interval(apart)
    return found


def workable(result: Result, task: str, arm: str) -> dict[int, float]:
    """For every seed that tunes, the share of the learning rates whose loss is near the best of that seed."""
    rows = select(result, task=task, arm=arm, stage="tuning")
    shares = {}
    for seed in sorted({int(row["seed"]) for row in rows}):
        mine = [row for row in rows if row["seed"] == seed]
        losses = numbers(mine, "loss")
        near = losses - losses.min() <= max(NEAR * losses.min(), NEAR_NATS) if len(losses) else losses > 0
        shares[seed] = float(near.sum()) / len(mine)
    return shares


ACTIVATIONS_FINDINGS = study_findings(ACTIVATIONS, activations_sentences, activations_intervals)


def scaling_sentences(result: Result) -> list[str]:
    """Steps, perplexity and entropy, a sentence per task."""
    sentences = []
    for task in choices(result, "task"):
        slow = slowdown(result, task, UNSCALED, SCALED)
        worse = difference(result, task, SCALING.comparisons[0])
        entropies = compared(
            difference(result, task, SCALING.comparisons[0], "entropy"), "entropy", "unscaled minus scaled"
        )
        sentences.append(
            f"On {TASKS[task]}, training without the factor takes {as_factor(slow)} times the steps to the loss that "
            f"it ends with, and its perplexity ends at {as_factor(worse)} times that with the factor (95 % intervals "
            f"over {worse.seeds} seeds); share of the largest possible entropy of attention at the end, {entropies}."
        )
    return sentences


def scaling_intervals(result: Result) -> Mapping[str, Interval]:
    """Entropy before training, and the logarithm of its quotient at the end."""
    found = {}
    for task in choices(result, "task"):
        for arm in (SCALED, UNSCALED):
            start = by_seed(result, task, arm, "entropy", 0)
            found[f"{task}: entropy of {arm} before training"] = interval(list(start.values()))
        one, two = (by_seed(result, task, arm, "entropy") for arm in (UNSCALED, SCALED))
        logs = [math.log(max(one[s], 1e-6) / max(two[s], 1e-6)) for s in sorted(one.keys() & two.keys())]
        found[f"{task}: log ratio of entropies, unscaled over scaled"] = interval(logs)
    return found


def scaling_chart(result: Result) -> Chart:
    """Loss and entropy of attention along training, a row per task."""
    quantities = ("loss", "entropy")
    panels = tuple(quantity_panel(result, task, one) for task in choices(result, "task") for one in quantities)
    about = (
        "Validation loss along training at the tuned learning rate, and the entropy of the rows of attention over that "
        "of equal weights: 1 is uniform, 0 is one-hot."
    )
    return Chart(f"{about} {BANDS}", "steps", "", panels, columns=len(quantities))


SCALING_FINDINGS = study_findings(SCALING, scaling_sentences, scaling_intervals, scaling_chart)


def temperatures(result: Result, task: str) -> list[dict[int, float]]:
    """Logarithm of the learned temperature, mean over heads, by layer and seed."""
    return [by_seed(result, task, LEARNED, f"log_gain{layer}") for layer in range(result.config["layers"])]


def lower_minus_upper(result: Result, task: str) -> Interval:
    """Of the logarithms, first layer minus last."""
    found = temperatures(result, task)
    return interval(weighted({"lower": found[0], "upper": found[-1]}, {"lower": 1.0, "upper": -1.0}))


def temperature_sentences(result: Result) -> list[str]:
    """Temperatures by layer, and the difference between the first and the last."""
    sentences = []
    for task in choices(result, "task"):
        means = [interval(list(found.values())) for found in temperatures(result, task)]
        text = ", ".join(f"layer {n}: {as_factor(one)}" for n, one in enumerate(means) if one.seeds)
        apart = compared(lower_minus_upper(result, task), "log temperature", "first layer minus last")
        sentences.append(
            f"On {TASKS[task]}, learned temperatures end at (geometric means and 95 % intervals, from 1) {text}; "
            f"{apart}. Since a temperature can be taken into W_Q, its value says something only together with the size "
            "of W_Q."
        )
    return sentences


def temperature_intervals(result: Result) -> Mapping[str, Interval]:
    """First layer minus last."""
    return {
        f"{task}: log temperature, first layer minus last": lower_minus_upper(result, task)
        for task in choices(result, "task")
    }


def temperature_chart(result: Result) -> Chart:
    """Loss of every arm, and the learned temperatures by layer, along training."""
    gains = [f"log_gain{layer}" for layer in range(result.config["layers"])]
    panels = tuple(
        panel
        for task in choices(result, "task")
        for panel in (
            quantity_panel(result, task, "loss"),
            gain_panel(result, task, LEARNED, gains, "logarithm of the learned temperature"),
        )
    )
    about = (
        "Validation loss along training at the tuned learning rate, and the logarithm of the learned temperature, mean "
        "over heads, which begins at 0."
    )
    return Chart(f"{about} {BANDS}", "steps", "", panels, columns=2)


TEMPERATURE_FINDINGS = study_findings(TEMPERATURE, temperature_sentences, temperature_intervals, temperature_chart)


PRESENTATIONS = {
    "study_activations": study_presentation(ACTIVATIONS_FINDINGS, ACTIVATIONS, last=entropy_pictures),
    "study_scaling": study_presentation(SCALING_FINDINGS, SCALING, first=entropy_pictures),
    "study_temperature": study_presentation(TEMPERATURE_FINDINGS, TEMPERATURE, last=entropy_pictures),
    "study_query_key": study_presentation(study_findings(QUERY_KEY), QUERY_KEY),
}
