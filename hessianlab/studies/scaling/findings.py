"""How much slower, how much worse, how much more peaked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hessianlab.results import Result
from hessianlab.results.table import choices
from hessianlab.studies.scaling.measure import EXPERIMENT, SCALED, UNSCALED
from hessianlab.trials.findings.charts import courses
from hessianlab.trials.findings.paired import Interval, by_seed, difference, interval, slowdown
from hessianlab.trials.findings.reading import study_findings
from hessianlab.trials.findings.sentences import as_factor, compared
from hessianlab.trials.measure.config import TASKS


def tell(result: Result) -> list[str]:
    """Steps, perplexity and entropy, a sentence a task."""
    sentences = []
    for task in choices(result, "task"):
        slow = slowdown(result, task, UNSCALED, SCALED)
        worse = difference(result, task, EXPERIMENT.comparisons[0])
        entropies = compared(
            difference(result, task, EXPERIMENT.comparisons[0], "entropy"), "entropy", "unscaled minus scaled"
        )
        sentences.append(
            f"On {TASKS[task]}, training without the factor takes {as_factor(slow)} times the steps to the loss that "
            f"it ends with, and its perplexity ends at {as_factor(worse)} times that with the factor (95 % intervals "
            f"over {worse.seeds} seeds); share of the largest possible entropy of attention at the end, {entropies}."
        )
    return sentences


def intervals(result: Result) -> Mapping[str, Interval]:
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


FINDINGS = study_findings(EXPERIMENT, tell, intervals, lambda result: courses(result, "entropy"))
