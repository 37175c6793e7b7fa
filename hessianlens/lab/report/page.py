"""Everything on one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.growth.findings.reference import Reference
from hessianlens.lab.pages.template import render_template
from hessianlens.lab.report.chapters import chapter
from hessianlens.lab.report.claims import ledger_chapter
from hessianlens.lab.report.exponents import RULE, exponent_rows, summary
from hessianlens.lab.results import Result, collect
from hessianlens.lab.wording import duration


def render(
    results: Sequence[Result],
    ledger: Ledger | None = None,
    reference: Reference | None = None,
    command: str = "hessianlens report",
) -> str:
    """The page: self-contained, and every number on it comes from the arguments.

    Args:
        results: In the order of the chapters.
        ledger: The tested claims, if there are any.
        reference: Published numbers to compare with, if they are at hand.
        command: What repeats the whole page.
    """
    exponents = exponent_rows(results)
    lead = f"{len(results)} figures and tables of the literature on the Hessian of attention, computed anew" + (
        f", and {len(ledger)} claims tested." if ledger else "."
    )
    return render_template(
        Path(__file__).with_name("report.html.jinja"),
        lead=lead,
        chapters=[chapter(result, reference) for result in results],
        exponents=exponents,
        exponent_summary=summary(exponents),
        rule=RULE,
        ledger=ledger_chapter(ledger) if ledger else None,
        presets=sorted({result.preset for result in results}),
        cells=sum(len(result.cells) for result in results),
        seconds=duration(sum(result.seconds for result in results)),
        command=command,
        provenance=collect(),
    )
