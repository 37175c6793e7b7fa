"""Exponents of growth figures as numbers behind an answer."""

from __future__ import annotations

from collections.abc import Iterable

from hessianlab.growth.exponents import ExponentFit
from hessianlab.presentations import growth_of
from hessianlab.report.story.chapter import Number, Results
from hessianlab.wording import MINUS


def fits_of(results: Results, *names: str) -> list[ExponentFit]:
    """Every fitted exponent of those of the named growth figures that the run has."""
    found: list[ExponentFit] = []
    for name in names:
        growth = growth_of(results[name]) if name in results else None
        if growth is not None:
            found += growth.exponents(results[name])
    return found


def top_layer(fits: Iterable[ExponentFit]) -> dict[tuple[str, str], ExponentFit]:
    """The fits of the top layer in the first range of each series, by block and part; of one depth and grid."""
    found: dict[tuple[str, str], ExponentFit] = {}
    for fit in fits:
        if fit.series.last and fit.series.grid == 0:
            found.setdefault((fit.series.block, fit.series.part), fit)
    return found


def power(fit: ExponentFit | None) -> str:
    """An exponent, or that there is none.

    >>> power(None)
    'zero'
    """
    return "zero" if fit is None or fit.measured is None else f"{fit.measured:.2f}".replace("-", MINUS)


def agreeing(fits: Iterable[ExponentFit], paper: bool = False) -> tuple[int, int]:
    """How many fits agree with the prediction (or with the paper), of those that decide."""
    decided = [fit.paper_agrees if paper else fit.agrees for fit in fits]
    told = [agrees for agrees in decided if agrees is not None]
    return sum(told), len(told)


def exponent_number(fit: ExponentFit, what: str) -> Number:
    """Measured with its interval, counted, and as the paper has it."""
    interval = f" ({fit.low:.2f} to {fit.high:.2f})" if fit.low is not None and fit.high is not None else ""
    return Number(
        what,
        (power(fit) + interval).replace("-", MINUS),
        "" if fit.predicted is None else str(fit.predicted),
        "" if fit.paper is None else str(fit.paper),
    )
