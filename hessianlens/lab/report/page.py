"""Everything on one page."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.growth.findings.reference import Reference
from hessianlens.lab.pages.template import render_template
from hessianlens.lab.report.claims import Tile, ledger_chapter, style_of, tiles
from hessianlens.lab.report.exponents import RULE, ExponentRow, exponent_rows, summary
from hessianlens.lab.report.foreword import opening
from hessianlens.lab.report.glossary import GLOSSARY, Linker
from hessianlens.lab.report.readings import Readings
from hessianlens.lab.report.shown import ShownFigure, ShownPicture, shown_figure, shown_pictures
from hessianlens.lab.report.story import CHAPTERS, Answer, Chapter, chapter_of_claim
from hessianlens.lab.report.story.order import OTHERS, chapter_of_figure, figures_of
from hessianlens.lab.results import Result, collect
from hessianlens.lab.telling import pictures_of
from hessianlens.lab.wording import duration

PAPER = "https://openreview.net/forum?id=3ddi7Uss2A"

_HERO = "activation_offset"
"""Its first picture, if the run has it, stands on the first screen."""

_SCRIPT = Path(__file__).with_name("report.js")


@dataclass(frozen=True)
class Told:
    """A chapter with its answer, its figures and its claims."""

    chapter: Chapter
    answer: Answer | None
    figures: tuple[ShownFigure, ...]
    tiles: tuple[Tile, ...]
    counts: tuple[tuple[str, int], ...]
    link: Linker


def render(
    results: Sequence[Result],
    ledger: Ledger | None = None,
    reference: Reference | None = None,
    command: str = "hessianlens report",
) -> str:
    """The page: self-contained, and every number on it comes from the arguments.

    Args:
        results: Of every experiment that the page shall show; its chapters have an order of their own.
        ledger: The tested claims, if there are any.
        reference: Published numbers to compare with, if they are at hand.
        command: What repeats the whole page.
    """
    found = {result.experiment: result for result in results}
    exponents = exponent_rows(results)
    answers = [(chapter, chapter.answer(found, ledger)) for chapter in CHAPTERS]
    chapters = [_told(chapter, answer, found, ledger, reference) for chapter, answer in answers]
    script = _SCRIPT.read_text(encoding="utf-8")
    return render_template(
        Path(__file__).with_name("report.html.jinja"),
        opening=opening(answers, ledger, _agreeing(exponents)),
        hero=_hero(found, reference),
        chapters=[told for told in chapters if told.answer or told.figures or told.tiles],
        others=[shown_figure(found[name], reference) for name in found if chapter_of_figure(name) is None],
        others_slug=OTHERS,
        exponents=exponents,
        exponent_summary=summary(exponents),
        rule=RULE,
        ledger=ledger_chapter(ledger) if ledger else None,
        glossary=GLOSSARY,
        Linker=Linker,
        readings=Readings(),
        paper=PAPER,
        presets=sorted({result.preset for result in results}),
        figures=len(results),
        cells=sum(len(result.cells) for result in results),
        seconds=duration(sum(result.seconds for result in results)),
        command=command,
        provenance=collect(),
        script=Markup(script),
        script_hash=script_hash(script),
    )


def script_hash(script: str) -> str:
    """What a content-security policy allows a script by; it counts every character between the tags."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _told(
    chapter: Chapter,
    answer: Answer | None,
    found: dict[str, Result],
    ledger: Ledger | None,
    reference: Reference | None,
) -> Told:
    own = [entry for entry in ledger or () if chapter_of_claim(entry.claim) is chapter]
    of = Counter(map(style_of, own))
    return Told(
        chapter=chapter,
        answer=answer,
        figures=tuple(shown_figure(found[name], reference) for name in figures_of(chapter, found)),
        tiles=tiles(own),
        counts=tuple((style, of[style]) for style in ("holds", "partly", "fails", "open") if of[style]),
        link=Linker(),
    )


def _hero(found: dict[str, Result], reference: Reference | None) -> ShownPicture | None:
    """The first picture of the figure that shows what is new."""
    if _HERO not in found:
        return None
    pictures = pictures_of(found[_HERO], reference)[:1]
    return next(iter(shown_pictures(pictures, "hero", "What separates the blocks")), None)


def _agreeing(rows: Sequence[ExponentRow]) -> tuple[int, int]:
    verdicts = [row.counted_verdict for row in rows]
    return verdicts.count("agrees"), verdicts.count("agrees") + verdicts.count("differs")
