"""Chapters: answers that follow from results, claims that all have a place, differences that are explained."""

import dataclasses
import json
import re
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import pytest

from hessianlab.claims.catalogue import all_claims, find
from hessianlab.claims.finding import Check, Finding
from hessianlab.claims.ledger import Entry, Ledger
from hessianlab.claims.trained import StudyRecord, read_record
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.plots.style import luminance, readable_on
from hessianlab.report.argument import CHAPTERS, chapter_of_claim, chapter_of_figure, figures_of
from hessianlab.report.claims import SURPRISES
from hessianlab.report.exponents import exponent_rows
from hessianlab.report.figures import notes
from hessianlab.report.glossary import GLOSSARY, Linker
from hessianlab.report.labbook import opening
from hessianlab.report.references import relations
from hessianlab.results import Result
from tests.hessianlab.report.results import result


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


def flattened(found: Result, end: float) -> Result:
    """The same result with the query block in place of the value block for sigma from `end` on."""

    def changed(cell):
        rows = {(r["layer"], r["block"], r["part"]): r["value"] for r in cell.measurement.rows}
        kept = tuple(
            {**r, "value": rows[r["layer"], "query", "full"]}
            if (r["block"], r["part"]) == ("value", "full") and cell.parameters["sigma"] >= end
            else r
            for r in cell.measurement.rows
        )
        return dataclasses.replace(cell, measurement=dataclasses.replace(cell.measurement, rows=kept))

    return dataclasses.replace(found, cells=tuple(map(changed, found.cells)))


@pytest.mark.long
def test_layer_norm_is_answered_for_the_range_that_was_fitted() -> None:
    norm = next(chapter for chapter in CHAPTERS if chapter.slug == "norm")
    ranges = (("small", 0.0, 0.2), ("large", 1.0, 10.0))
    found = dataclasses.replace(result("fig3a"), config={**result("fig3a").config, "fit_ranges": ranges})
    apart = norm.answer({"fig3b": found}, None)
    alike = norm.answer({"fig3b": flattened(found, 0.0)}, None)
    assert apart and alike and (apart.kind, alike.kind) == ("no", "yes")
    assert "up to 0.2" in apart.sentence and "from 1 on" in apart.sentence
    assert alike.verdict == "yes, for σ up to 0.2 and from 1 on"
    flat_below = dataclasses.replace(
        found,
        cells=tuple(
            cell if cell.parameters["sigma"] > 0.2 else other
            for cell, other in zip(found.cells, flattened(found, 0.0).cells, strict=True)
        ),
    )
    half = norm.answer({"fig3b": flat_below}, None)
    assert half and half.kind == "if" and half.verdict == "only for small σ, up to 0.2"


SPREADS = {("linear", "pre-norm"): 1, ("softmax", "pre-norm"): 2, ("sigmoid", "pre-norm"): 3}
SPREADS |= {("linear", "no norm"): 4, ("softmax", "no norm"): 5, ("sigmoid", "no norm"): 6}


def recorded(tmp_path, monkeypatch, gaps: Sequence[float], change: float) -> None:
    """A record of SGD's gaps to Adam, by rising block ratio, and of the change of its loss by rates from curvature."""
    intervals = {}
    for ((kind, norm), spread), gap in zip(SPREADS.items(), gaps, strict=True):
        name = f"characters: loss, {kind}, {norm}, SGD minus {kind}, {norm}, Adam"
        intervals[name] = [gap, gap - 0.05, gap + 0.05, 6, 0.06]
        intervals[f"characters: log block spread, {kind}, {norm}"] = [spread, spread - 0.5, spread + 0.5, 6, 0.1]
    rates = {"characters: loss, SGD, rates by curvature minus SGD": [change, change - 0.05, change + 0.05, 6, 0.06]}
    common = {"preset": "quick", "created": "then", "seconds": 3, "diverged": {}}
    common["config"] = {"seeds": 6, "layers": 1, "d_model": 16, "steps": 300}
    studies = {"study_optimisers": intervals, "study_block_rates": rates}
    record = {name: {**common, "intervals": found} for name, found in studies.items()}
    monkeypatch.setattr("hessianlab.report.argument.StudyRecord", lambda name: StudyRecord(name, tmp_path / "r.json"))
    (tmp_path / "r.json").write_text(json.dumps(record), encoding="utf-8")
    read_record.cache_clear()


RISING, UNSURE, FALLING = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (0.2, 0.1, 0.4, 0.5, 0.3, 0.6), (0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


@pytest.mark.parametrize(
    ("gaps", "change", "kind", "words"),
    [
        (RISING, -0.2, "yes", "SGD comes nearer to Adam"),
        (RISING, 0.2, "open", "SGD ends worse"),
        (UNSURE, 0.2, "open", "does not decide whether the two go together"),
        (UNSURE, 0.0, "open", "no change was found"),
        (FALLING, 0.2, "no", "the gap is smaller where blocks are less alike"),
    ],
)
def test_training_is_answered_by_the_recorded_studies(tmp_path, monkeypatch, gaps, change, kind, words) -> None:
    recorded(tmp_path, monkeypatch, gaps, change)
    training = next(chapter for chapter in CHAPTERS if chapter.slug == "training")
    told = training.answer({}, Ledger((with_verdict("A26", True),)))
    assert told and told.kind == kind and words in told.sentence and "width 16" in told.sentence
    assert "95 % interval" in told.sentence and "The one intervention" in told.sentence


def test_the_first_screen_tells_both_counts_and_why_they_differ() -> None:
    rows = exponent_rows([result("fig8")])
    told = opening([], None, rows)
    assert f"{len(rows)} of {len(rows)} that counting" in told.held and "that the paper draws or states" in told.held
    assert told.why == ""
    wrong = [dataclasses.replace(rows[0], paper_verdict="differs", counted="", counted_verdict=""), *rows[1:]]
    told = opening([], None, wrong)
    assert f"{len(rows) - 1} of {len(rows)} that the paper" in told.held
    assert told.why.startswith("Those of the paper that differ: 1 in Figure 8") and "none of these 1" in told.why


def test_two_values_of_one_quantity_say_why() -> None:
    pair = {name: result(name) for name in ("parameterisations", "query_key_spectra")}
    told = notes(pair)
    assert set(told) == set(pair)
    (here,), (there,) = told["parameterisations"], told["query_key_spectra"]
    assert "here, " in here and "which has" in here and "draws of its own" in here and here != there
    assert notes({"parameterisations": pair["parameterisations"]}) == {}
