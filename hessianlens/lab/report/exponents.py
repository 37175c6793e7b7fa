"""The table of exponents: measured with their interval, predicted, agreeing or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlens.lab.growth.findings.exponents import LEVEL, TOLERANCE, ExponentFit
from hessianlens.lab.growth.findings.predictions import Prediction
from hessianlens.lab.report.names import short_name
from hessianlens.lab.results import Result
from hessianlens.lab.telling import growth_of
from hessianlens.lab.wording import MINUS, be

RULE = (
    f"A prediction agrees if it lies in the {LEVEL:.0%} interval widened by {TOLERANCE:g} on both sides (the next "
    "power of σ still bends a slope at finite σ), or if the block is exactly zero as predicted; “open” means that the "
    "interval is too wide to decide. By counting: what counting powers of σ gives. In the paper: what it draws or says."
)

_VERDICTS = {True: "agrees", False: "differs", None: "open"}


@dataclass(frozen=True)
class ExponentRow:
    """A line of the table; `first` marks the first line of an experiment."""

    experiment: str
    label: str
    first: bool
    series: str
    range: str
    measured: str
    interval: str
    counted: str
    counted_verdict: str
    paper: str
    paper_verdict: str

    @property
    def differs(self) -> bool:
        """Whether anything predicted is not what was measured."""
        return "differs" in (self.counted_verdict, self.paper_verdict)


def exponent_rows(results: Sequence[Result]) -> list[ExponentRow]:
    """A line for each fit that something was predicted for."""
    rows: list[ExponentRow] = []
    for result in results:
        growth = growth_of(result)
        if growth is None:
            continue
        label = short_name(result.experiment)
        fits = [fit for fit in growth.exponents(result) if fit.predicted is not None or fit.paper is not None]
        rows += [_row(fit, label, first=position == 0) for position, fit in enumerate(fits)]
    return rows


def summary(rows: Sequence[ExponentRow]) -> str:
    """How many agree, in one or two sentences."""
    counted = _agreeing([row.counted_verdict for row in rows])
    paper = _agreeing([row.paper_verdict for row in rows])
    return (
        f"Of the exponents predicted by counting powers of σ, {counted}; of those the paper draws or states, {paper}."
    )


def _agreeing(verdicts: Sequence[str]) -> str:
    agree, differ, open_ = (verdicts.count(verdict) for verdict in _VERDICTS.values())
    told = f"{agree} of {agree + differ} agree with the measured ones"
    return told + (f" and {open_} {be(open_)} left open by the data" if open_ else "")


def _row(fit: ExponentFit, label: str, first: bool) -> ExponentRow:
    interval = f"{fit.low:.2f} to {fit.high:.2f}" if fit.low is not None and fit.high is not None else ""
    return ExponentRow(
        experiment=fit.experiment,
        label=label,
        first=first,
        series=fit.series.in_words(),
        range=f"{fit.range.low:g} to {fit.range.high:g}",
        measured="zero" if fit.measured is None else f"{fit.measured:.2f}".replace("-", MINUS),
        interval=interval.replace("-", MINUS),
        counted=_predicted(fit.predicted),
        counted_verdict="" if fit.predicted is None else _VERDICTS[fit.agrees],
        paper=_predicted(fit.paper),
        paper_verdict="" if fit.paper is None else _VERDICTS[fit.paper_agrees],
    )


def _predicted(prediction: Prediction) -> str:
    return "" if prediction is None else str(prediction).replace("-", MINUS)
