"""How the result of a study is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hessianlab.results import Chart, Findings, Result
from hessianlab.trials.findings.charts import courses
from hessianlab.trials.findings.paired import Interval
from hessianlab.trials.findings.sentences import study_sentences
from hessianlab.trials.findings.summaries import record, study_comparisons, study_levels, study_lost
from hessianlab.trials.measure import Study


@dataclass(frozen=True)
class StudyFindings(Findings):
    """Sentences, the numbers behind them as they are recorded, and the chart that shows the answer.

    Attributes:
        in_numbers: What is recorded of a result.
        chart: What the study asks about, in numbers.
        table: Lines of a table, by heading; none where sentences say it all.
    """

    in_numbers: Callable[[Result], dict[str, Any]]
    chart: Callable[[Result], Chart]
    table: Callable[[Result], list[dict[str, str]]] = lambda result: []


def study_findings(
    study: Study,
    extra: Callable[[Result], list[str]] = lambda result: [],
    extra_intervals: Callable[[Result], Mapping[str, Interval]] = lambda result: {},
    chart: Callable[[Result], Chart] = courses,
) -> StudyFindings:
    """The findings of a study: what all of them tell, and what is special of this one."""

    def sentences(result: Result) -> list[str]:
        return study_sentences(result, study, extra(result))

    def in_numbers(result: Result) -> dict[str, Any]:
        levels = {**study_levels(result), **extra_intervals(result)}
        compared = study_comparisons(result, study)
        return record(result, levels, compared, sentences(result), chart(result), study_lost(result))

    return StudyFindings(sentences, in_numbers, chart)
