"""The table of exponents: measured with their interval, predicted, agreeing or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hessianlab.growth.exponents import LEVEL, TOLERANCE, WIDEST, ExponentFit
from hessianlab.growth.series import Prediction
from hessianlab.presentations import growth_of
from hessianlab.report.figures import short_name
from hessianlab.results import Result
from hessianlab.wording import MINUS, be, several

RULE = (
    f"A prediction agrees if it lies in the {LEVEL:.0%} interval of the measured exponent widened by {TOLERANCE:g} on "
    "both sides (the next power of σ still bends a slope at finite σ), or if the block is exactly zero as predicted. "
    f"It is open if the interval holds it but is wider than ±{WIDEST[0]:g} (or ±{WIDEST[1]:.0%} of the prediction), "
    "which decides nothing. It differs otherwise."
)

COLUMNS = "By counting: what counting powers of σ gives. In the paper: what it draws or says."

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


class AgreementCount(NamedTuple):
    """How many predictions agree and differ, how many the data leave open, and how many agree on a block of zeros."""

    agree: int
    differ: int
    open: int
    zero: int = 0

    @property
    def decided(self) -> int:
        """Those that the data decide."""
        return self.agree + self.differ


def exponent_rows(results: Sequence[Result]) -> list[ExponentRow]:
    """A line for each fit that something was predicted for."""
    rows: list[ExponentRow] = []
    for result in results:
        growth = growth_of(result)
        if growth is None:
            continue
        label, ends = short_name(result.experiment), tuple(result.config.get("sigma_high", ()))
        fits = [fit for fit in growth.exponents(result) if fit.predicted is not None or fit.paper is not None]
        rows += [_row(fit, label, ends, first=position == 0) for position, fit in enumerate(fits)]
    return rows


def by_counting(rows: Sequence[ExponentRow]) -> AgreementCount:
    """Of what counting powers predicts."""
    return _tally([(row.counted_verdict, row.counted) for row in rows])


def by_the_paper(rows: Sequence[ExponentRow]) -> AgreementCount:
    """Of what the paper draws or states."""
    return _tally([(row.paper_verdict, row.paper) for row in rows])


def _tally(predictions: Sequence[tuple[str, str]]) -> AgreementCount:
    verdicts = [verdict for verdict, _ in predictions]
    agree, differ, left = (verdicts.count(_VERDICTS[state]) for state in (True, False, None))
    return AgreementCount(agree, differ, left, predictions.count((_VERDICTS[True], "zero")))


def summary(rows: Sequence[ExponentRow]) -> str:
    """How many agree, and why the two counts differ."""
    text = (
        f"Of the exponents predicted by counting powers of σ, {_agreeing(by_counting(rows))}; of those the paper draws "
        f"or states, {_agreeing(by_the_paper(rows))}."
    )
    return " ".join(filter(None, (text, why_they_differ(rows))))


def why_they_differ(rows: Sequence[ExponentRow]) -> str:
    """Where the paper's exponents differ from the measured ones, and whether counting predicts them at all."""
    wrong = [row for row in rows if row.paper_verdict == "differs"]
    if not wrong:
        return ""
    places: dict[str, Counter[str]] = {}
    for row in wrong:
        places.setdefault(row.label, Counter())[row.range] += 1
    text = several(
        [
            f"{ranges.total()} in {label} ({', '.join(f'{n} for σ {where}' for where, n in ranges.items())})"
            for label, ranges in places.items()
        ]
    )
    silent = sum(not row.counted for row in wrong)
    which = f"none of these {len(wrong)}" if silent == len(wrong) else f"{len(wrong) - silent} of these {len(wrong)}"
    return (
        f"Those of the paper that differ: {text}. Counting gives the leading power only where one power leads, and "
        f"predicts {which}."
    )


def _agreeing(tally: AgreementCount) -> str:
    zero = f" ({tally.zero} of them on a block that is exactly zero)" if tally.zero else ""
    text = f"{tally.agree} of {tally.decided} agree with the measured ones{zero}"
    return text + (f" and {tally.open} {be(tally.open)} left open by the data" if tally.open else "")


def _row(fit: ExponentFit, label: str, ends: Sequence[float], first: bool) -> ExponentRow:
    return ExponentRow(
        experiment=fit.experiment,
        label=label,
        first=first,
        series=fit.series.in_words(ends),
        range=fit.range.in_words(),
        measured=fit.power,
        interval=fit.interval,
        counted=_predicted(fit.predicted),
        counted_verdict="" if fit.predicted is None else _VERDICTS[fit.agrees],
        paper=_predicted(fit.paper),
        paper_verdict="" if fit.paper is None else _VERDICTS[fit.paper_agrees],
    )


def _predicted(prediction: Prediction) -> str:
    return "" if prediction is None else str(prediction).replace("-", MINUS)
