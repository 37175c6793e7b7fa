"""Chapters: answers that follow from results, claims that all have a place, differences that are explained."""

import dataclasses
import re

import matplotlib as mpl
import numpy as np
import pytest

from hessianlens.lab.claims.check import Check
from hessianlens.lab.claims.entry import Entry
from hessianlens.lab.claims.finding import Finding
from hessianlens.lab.claims.ledger import Ledger
from hessianlens.lab.claims.registry import all_claims, find
from hessianlens.lab.experiments.registry import EXPERIMENTS
from hessianlens.lab.plots.style import luminance, readable_on
from hessianlens.lab.report.foreword import SURPRISES
from hessianlens.lab.report.glossary import GLOSSARY, Linker
from hessianlens.lab.report.related import relations
from hessianlens.lab.report.story import CHAPTERS, chapter_of_claim
from hessianlens.lab.report.story.order import chapter_of_figure, figures_of
from hessianlens.lab.results import Result
from tests.lab.report.results import result


def scaled(found: Result, factor: float, **wanted: object) -> Result:
    """The same result with sizes of some rows multiplied."""
    sizes = ("median", "rms", "value", "norm")

    def changed(row: dict) -> dict:
        return {k: v * factor if k in sizes and v is not None else v for k, v in row.items()}

    cells = tuple(
        dataclasses.replace(
            cell,
            measurement=dataclasses.replace(
                cell.measurement,
                rows=tuple(
                    changed(row) if all({**cell.parameters, **row}.get(k) == v for k, v in wanted.items()) else row
                    for row in cell.measurement.rows
                ),
            ),
        )
        for cell in found.cells
    )
    return dataclasses.replace(found, cells=cells)


def test_every_figure_and_every_claim_has_one_chapter() -> None:
    for name in EXPERIMENTS:
        assert sum(name in chapter.figures for chapter in CHAPTERS) <= 1
    shown = [name for chapter in CHAPTERS for name in figures_of(chapter, EXPERIMENTS)]
    assert sorted(shown) == sorted(name for name in EXPERIMENTS if chapter_of_figure(name))
    slugs = {chapter.slug for chapter in CHAPTERS}
    assert {chapter_of_claim(claim).slug for claim in all_claims()} == slugs, "and no chapter is without claims"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.slug)
def test_a_chapter_without_results_has_no_answer(chapter) -> None:
    assert chapter.answer({}, None) is None


def test_answers_follow_the_numbers() -> None:
    blocks = next(chapter for chapter in CHAPTERS if chapter.slug == "blocks")
    found = result("fig1")
    before = blocks.answer({"fig1": found}, None)
    more = blocks.answer({"fig1": scaled(found, 1e6, block="value")}, None)
    less = blocks.answer({"fig1": scaled(found, 1e-6, block="value")}, None)
    assert before and more and less
    assert (more.verdict, less.verdict) == ("yes", "no") and before.sentence != more.sentence != less.sentence


def test_no_number_is_typed_into_a_chapter() -> None:
    for chapter in CHAPTERS:
        words = (chapter.introduction + chapter.question).replace("a(0)", "")
        assert not re.search(r"\d", words), chapter.slug


def with_verdict(id: str, holds: bool) -> Entry:
    (claim,) = find([id])
    return Entry(claim, Finding((Check("it", "1", "1", holds),)))


def test_claims_on_the_same_number_with_different_verdicts_say_why() -> None:
    told = relations(Ledger((with_verdict("P33", True), with_verdict("A6", False), with_verdict("A5", False))))
    assert [(other.id, other.verdict) for other in told["P33"]] == [("A6", "fails")]
    assert [other.id for other in told["A6"]] == ["P33"] and "A5" not in told
    assert "ratio" in told["P33"][0].why and not re.search(r"\b\d+(?:\.\d+)?\b", told["P33"][0].why)
    assert relations(Ledger((with_verdict("P33", True), with_verdict("A6", True)))) == {}


def test_surprises_are_eight_claims() -> None:
    assert [claim.id for claim in find(list(SURPRISES))] == list(SURPRISES) and len(set(SURPRISES)) == 8


def test_words_are_linked_once_and_each_is_found() -> None:
    linker = Linker()
    first, second = linker("A block and a block."), linker("A block.")
    assert first.count('href="#word-block"') == 1 and second == "A block."
    assert len({word.slug for word in GLOSSARY}) == len(GLOSSARY)


def test_text_on_coloured_cells_can_be_read() -> None:
    for name in ("cividis", "viridis", "PuOr_r"):
        for colour in mpl.colormaps[name](np.linspace(0, 1, 256)):
            bright, dark = sorted((luminance(colour), luminance(readable_on(colour))), reverse=True)
            assert (bright + 0.05) / (dark + 0.05) >= 4.5
            assert readable_on(colour) in ("#000000", "#ffffff"), "no colour that a dark page changes"
