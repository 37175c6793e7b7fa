"""One chapter an experiment: what was asked, what was found, the pictures, and how to repeat it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup, escape

from hessianlens.lab.experiments.registry import EXPERIMENTS
from hessianlens.lab.growth.findings.comparison import agreement_in_words
from hessianlens.lab.growth.findings.reference import Reference
from hessianlens.lab.plots.style import to_svg
from hessianlens.lab.report.names import short_name
from hessianlens.lab.report.repeating import command, settings
from hessianlens.lab.results import Provenance, Result
from hessianlens.lab.telling import findings_of, growth_of, pictures_of
from hessianlens.lab.wording import duration


@dataclass(frozen=True)
class ShownPicture:
    """A drawing and the words below it."""

    svg: Markup
    caption: str


@dataclass(frozen=True)
class Chapter:
    """What the page says about one experiment."""

    name: str
    label: str
    title: str
    source: str
    question: str
    findings: tuple[str, ...]
    pictures: tuple[ShownPicture, ...]
    published: tuple[Mapping[str, str], ...]
    published_summary: str
    command: str
    settings: Mapping[str, str]
    cells: int
    seconds: str
    provenance: Provenance


def chapter(result: Result, reference: Reference | None = None) -> Chapter:
    """The chapter of one result; `reference` holds published numbers to compare growth curves with."""
    experiment = EXPERIMENTS[result.experiment]
    growth = growth_of(result)
    compared = growth.compared(result, reference) if growth else []
    return Chapter(
        name=experiment.name,
        label=short_name(experiment.name),
        title=experiment.title,
        source=experiment.source,
        question=experiment.question,
        findings=tuple(findings_of(result).sentences(result)),
        pictures=tuple(
            ShownPicture(
                Markup(to_svg(p.figure, f"{experiment.name}-{p.name}", str(escape(f"{experiment.title}: {p.name}")))),
                p.caption,
            )
            for p in pictures_of(result, reference)
        ),
        published=tuple(series.in_words() for series in compared),
        published_summary=agreement_in_words(compared),
        command=command(result),
        settings=settings(result),
        cells=len(result.cells),
        seconds=duration(result.seconds),
        provenance=result.provenance,
    )
