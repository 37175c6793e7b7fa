"""Whether it helps, and where learned temperatures end, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping

from hessianlab.results import Result
from hessianlab.results.table import choices
from hessianlab.studies.temperature.measure import EXPERIMENT, LEARNED
from hessianlab.trials.findings.paired import Interval, by_seed, interval, weighted
from hessianlab.trials.findings.reading import study_findings
from hessianlab.trials.findings.sentences import as_factor, compared
from hessianlab.trials.measure.config import TASKS


def temperatures(result: Result, task: str) -> list[dict[int, float]]:
    """Logarithm of the learned temperature, mean over heads, by layer and seed."""
    return [by_seed(result, task, LEARNED, f"log_gain{layer}") for layer in range(result.config["layers"])]


def lower_minus_upper(result: Result, task: str) -> Interval:
    """Of the logarithms, first layer minus last."""
    found = temperatures(result, task)
    return interval(weighted({"lower": found[0], "upper": found[-1]}, {"lower": 1.0, "upper": -1.0}))


def tell(result: Result) -> list[str]:
    """Temperatures by layer, and the difference between the first and the last."""
    sentences = []
    for task in choices(result, "task"):
        means = [interval(list(found.values())) for found in temperatures(result, task)]
        told = ", ".join(f"layer {n}: {as_factor(one)}" for n, one in enumerate(means) if one.seeds)
        apart = compared(lower_minus_upper(result, task), "log temperature", "first layer minus last")
        sentences.append(
            f"On {TASKS[task]}, learned temperatures end at (geometric means and 95 % intervals, from 1) {told}; "
            f"{apart}. Since a temperature can be taken into W_Q, its value says something only together with the size "
            "of W_Q."
        )
    return sentences


def intervals(result: Result) -> Mapping[str, Interval]:
    """First layer minus last."""
    return {
        f"{task}: log temperature, first layer minus last": lower_minus_upper(result, task)
        for task in choices(result, "task")
    }


FINDINGS = study_findings(EXPERIMENT, tell, intervals)
