"""How the result of a study is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hessianlens.lab.results import Findings, Result
from hessianlens.lab.trials.findings.paired import Interval
from hessianlens.lab.trials.findings.sentences import study_sentences
from hessianlens.lab.trials.findings.summaries import summary
from hessianlens.lab.trials.measure import Study


@dataclass(frozen=True)
class StudyFindings(Findings):
    """Sentences, and the numbers behind them as they are recorded.

    Attributes:
        in_numbers: What is recorded of a result.
    """

    in_numbers: Callable[[Result], dict[str, Any]]


def study_findings(
    study: Study,
    extra: Callable[[Result], list[str]] = lambda result: [],
    extra_intervals: Callable[[Result], Mapping[str, Interval]] = lambda result: {},
) -> StudyFindings:
    """The findings of a study: what all of them tell, and what is special of this one."""
    return StudyFindings(
        lambda result: study_sentences(result, study, extra(result)),
        lambda result: summary(result, study, extra_intervals(result)),
    )
