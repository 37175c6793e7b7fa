"""Everything on one page."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from hessianlab.claims.ledger import Ledger
from hessianlab.growth.reference import Reference
from hessianlab.pages import render_template
from hessianlab.report.claims import Tile, ledger_chapter, style_of, tiles
from hessianlab.report.elsewhere import notes
from hessianlab.report.exponents import COLUMNS, exponent_rows, summary
from hessianlab.report.figures import PageFigure, PagePicture, Readings, page_figure
from hessianlab.report.foreword import opening
from hessianlab.report.glossary import GLOSSARY, Linker
from hessianlab.report.recorded import RecordedStudy, recorded_studies
from hessianlab.report.references import LIST, PAPER
from hessianlab.report.story import CHAPTERS, Answer, Chapter, chapter_of_claim
from hessianlab.report.story.order import OTHERS, chapter_of_figure, figures_of
from hessianlab.report.story.training import CHAPTER as TRAINING
from hessianlab.results import Result, collect
from hessianlab.wording import duration

_HERO = "activation_offset"
"""Its first picture, if the run has it, stands on the first screen."""

_SCRIPT = Path(__file__).with_name("report.js")


@dataclass(frozen=True)
class ChapterContent:
    """A chapter with its answer, its figures and its claims."""

    chapter: Chapter
    answer: Answer | None
    figures: tuple[PageFigure, ...]
    studies: tuple[RecordedStudy, ...]
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
    elsewhere = notes(found)
    figures = {name: page_figure(result, reference, elsewhere.get(name, ())) for name, result in found.items()}
    chapters = [_chapter_content(chapter, answer, figures, ledger) for chapter, answer in answers]
    script = _SCRIPT.read_text(encoding="utf-8")
    return render_template(
        Path(__file__).with_name("report.html.jinja"),
        opening=opening(answers, ledger, exponents),
        hero=_hero(figures),
        chapters=[told for told in chapters if told.answer or told.figures or told.tiles],
        others=[figure for name, figure in figures.items() if chapter_of_figure(name) is None],
        others_slug=OTHERS,
        exponents=exponents,
        exponent_summary=summary(exponents),
        columns=COLUMNS,
        documents=LIST,
        left_open=tiles([entry for entry in ledger or () if style_of(entry) == "open"]),
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


def _chapter_content(
    chapter: Chapter,
    answer: Answer | None,
    figures: Mapping[str, PageFigure],
    ledger: Ledger | None,
) -> ChapterContent:
    own = [entry for entry in ledger or () if chapter_of_claim(entry.claim) is chapter]
    of = Counter(map(style_of, own))
    return ChapterContent(
        chapter=chapter,
        answer=answer,
        figures=tuple(figures[name] for name in figures_of(chapter, figures)),
        studies=tuple(recorded_studies()) if chapter is TRAINING and own else (),
        tiles=tiles(own),
        counts=tuple((style, of[style]) for style in ("holds", "partly", "fails", "open") if of[style]),
        link=Linker(),
    )


def _hero(figures: Mapping[str, PageFigure]) -> PagePicture | None:
    """The first picture of the figure that shows what is new, once more; ids are unique on a page."""
    if _HERO not in figures or not figures[_HERO].pictures:
        return None
    first = figures[_HERO].pictures[0]
    return replace(first, svgs=tuple(Markup(svg.replace(f"{_HERO}-", "hero-")) for svg in first.svgs))
