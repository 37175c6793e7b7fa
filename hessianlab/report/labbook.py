"""The lab book, which has everything: its first screen, chapters with answers, figures and claims, and the appendix."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.claims.trained import StudyRecord
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.growth.agreements import read_agreements
from hessianlab.growth.reference import Reference
from hessianlab.pages import render_template
from hessianlab.report.argument import OTHERS, TRAINING, chapter_of_claim, chapter_of_figure, figures_of
from hessianlab.report.chapter import Answer, Chapter
from hessianlab.report.claims import Tile, VerdictCount, ledger_chapter, tiles, verdict_counts
from hessianlab.report.contents import Contents, contents_of
from hessianlab.report.exponents import (
    COLUMNS,
    AgreementCount,
    ExponentRow,
    by_counting,
    by_the_paper,
    summary,
    why_they_differ,
)
from hessianlab.report.figures import PageFigure, PagePicture, Readings, notes, page_figure
from hessianlab.report.glossary import GLOSSARY, Linker
from hessianlab.report.quotation import ShownQuotation, counted_verdicts, shown_quotations
from hessianlab.report.recorded import RecordedStudy, recorded_studies
from hessianlab.report.references import LIST, PAPER
from hessianlab.results import Result, collect
from hessianlab.wording import duration, percent
from hessianlens.explorer.standalone import script_hash
from hessianlens.sizes import number_of


@dataclass(frozen=True)
class Opening:
    """What held, what ended where, what is new, what a trained model shows; and why the numbers that held are two."""

    held: str
    why: str
    ended: str
    new: str
    trained: str


def opening(
    answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None, exponents: Sequence[ExponentRow]
) -> Opening:
    """Four sentences; one for which the run has nothing is empty.

    Args:
        answers: Of every chapter.
        ledger: The tested claims.
        exponents: Every exponent that something was predicted for.
    """
    new = next((_answered(*found) for found in answers if found[0].slug == "softmax"), "")
    trained = next(iter(StudyRecord("study_atlas").sentences), "")
    return Opening(_held(ledger, exponents), why_they_differ(exponents), _ended(answers, ledger), new, trained)


def _held(ledger: Ledger | None, exponents: Sequence[ExponentRow]) -> str:
    counts = []
    ours, theirs = by_counting(exponents), by_the_paper(exponents)
    if ours.decided:
        counts.append(f"{ours.agree} of {ours.decided} that counting factors predicts were found{_besides(ours)}")
    if theirs.decided:
        found = "" if counts else " were found"
        counts.append(f"{theirs.agree} of {theirs.decided} that the paper draws or states{found}{_besides(theirs)}")
    growth = ""
    if counts:
        growth = (
            "Multiply the data by a small number and every block shrinks as a power of it. Of these powers, one "
            f"per block, part, layer and range in the figures, {', and '.join(counts)}."
        )
    claims = ""
    if ledger:
        holding = sum(entry.verdict is Verdict.HOLDS for entry in ledger)
        claims = f"{holding} of {len(ledger)} claims hold as written."
    return " ".join(filter(None, (growth, claims)))


def _besides(tally: AgreementCount) -> str:
    """What the two numbers count: blocks that are zero as predicted among them, what the data leave open not."""
    zero = f"{tally.zero} of them a block that is zero, as predicted" if tally.zero else ""
    left = f"{tally.open} more left open by the data" if tally.open else ""
    return f" ({', '.join(filter(None, (zero, left)))})" if zero or left else ""


def _ended(answers: Sequence[tuple[Chapter, Answer | None]], ledger: Ledger | None) -> str:
    limited, undecided = (
        [f"{chapter.title.lower()} ({_brief(answer)})" for chapter, answer in answers if answer and answer.kind == kind]
        for kind in ("if", "open")
    )
    sentences = []
    if ledger:
        others = [entry.verdict for entry in ledger if entry.verdict is not Verdict.HOLDS]
        if others:
            sentences.append(f"Of the other {number_of(len(others), 'claim')} {counted_verdicts(others)}.")
    if limited:
        begins = "comes" if len(limited) == 1 else "come"
        sentences.append(f"{number_of(len(limited), 'answer')} below {begins} with a condition: {'; '.join(limited)}.")
    if undecided:
        sentences.append(f"Left open: {'; '.join(undecided)}.")
    return " ".join(sentences)


def _answered(chapter: Chapter, answer: Answer | None) -> str:
    """A question with its answer."""
    if answer is None:
        return ""
    return f"{chapter.question} {answer.verdict[:1].upper()}{answer.verdict[1:]}. {answer.sentence}"


def _brief(answer: Answer) -> str:
    """A verdict without what it explains in brackets."""
    return re.sub(r" \([^)]*\)", "", answer.verdict)


_HERO = "activation_offset"
"""Its first picture, if the run has it, stands on the first screen."""

_SCRIPTS = tuple(Path(__file__).with_name(name) for name in ("reading.js", "labbook.js"))


@dataclass(frozen=True)
class ChapterContent:
    """A chapter with its answer, the claims that it rests on, its figures and its claims."""

    chapter: Chapter
    answer: Answer | None
    quoted: tuple[ShownQuotation, ...]
    figures: tuple[PageFigure, ...]
    studies: tuple[RecordedStudy, ...]
    tiles: tuple[Tile, ...]
    counts: tuple[VerdictCount, ...]
    link: Linker


def render_labbook(
    results: Sequence[Result],
    ledger: Ledger | None = None,
    reference: Reference | None = None,
    command: str = "hessianlens report",
    contents: Contents | None = None,
) -> str:
    """The page: self-contained, and every number on it comes from the arguments.

    Args:
        results: Of every experiment that the page shall show; its chapters have an order of their own.
        ledger: The tested claims, if there are any.
        contents: What `contents_of` makes of both, if it is at hand.
        reference: Published numbers to compare with, if they are at hand.
        command: What repeats the whole page.
    """
    contents = contents or contents_of(results, ledger)
    found, exponents, answers = contents.results, contents.exponents, contents.answers
    elsewhere = notes(found)
    figures = {name: page_figure(result, reference, elsewhere.get(name, ())) for name, result in found.items()}
    chapters = [_chapter_content(chapter, answer, figures, ledger) for chapter, answer in answers]
    script = "".join(file.read_text(encoding="utf-8") for file in _SCRIPTS)
    return render_template(
        Path(__file__).with_name("labbook.html.jinja"),
        opening=opening(answers, ledger, exponents),
        hero=_hero(figures),
        agreements=_agreements(),
        chapters=[story for story in chapters if story.answer or story.figures or story.tiles],
        others=[figure for name, figure in figures.items() if chapter_of_figure(name) is None],
        others_slug=OTHERS,
        exponents=exponents,
        exponent_summary=summary(exponents),
        columns=COLUMNS,
        documents=LIST,
        left_open=tiles([entry for entry in ledger or () if entry.verdict is Verdict.OPEN]),
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


def _agreements() -> list[dict[str, str]]:
    """Recorded runs of published size against the published means, as text."""
    return [
        {
            "name": one.number,
            "ratio": one.ratio_in_words(),
            "within_2": percent(one.within_2),
            "within_3": percent(one.within_3),
            "points": str(one.points),
        }
        for one in read_agreements()
        if one.experiment in EXPERIMENTS
    ]


def _chapter_content(
    chapter: Chapter,
    answer: Answer | None,
    figures: Mapping[str, PageFigure],
    ledger: Ledger | None,
) -> ChapterContent:
    own = [entry for entry in ledger or () if chapter_of_claim(entry.claim) is chapter]
    return ChapterContent(
        chapter=chapter,
        answer=answer,
        quoted=shown_quotations(chapter.quoted, answer.kind, ledger) if answer else (),
        figures=tuple(figures[name] for name in figures_of(chapter, figures)),
        studies=tuple(recorded_studies()) if chapter is TRAINING and own else (),
        tiles=tiles(own),
        counts=verdict_counts(own),
        link=Linker(),
    )


def _hero(figures: Mapping[str, PageFigure]) -> PagePicture | None:
    """The first picture of the figure that shows what is new, a second time; ids are unique on a page."""
    if _HERO not in figures or not figures[_HERO].pictures:
        return None
    first = figures[_HERO].pictures[0]
    return replace(first, svgs=tuple(Markup(svg.replace(f"{_HERO}-", "hero-")) for svg in first.svgs))
