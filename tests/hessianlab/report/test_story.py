"""The story: its size, its sentences and where they lead, the claims that it names, and how it works in a browser."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable
from html import unescape
from pathlib import Path

import pytest

from hessianlab.claims.catalogue import all_claims
from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Ledger
from hessianlab.claims.trained import StudyRecord
from hessianlab.report.argument import ANSWERING, optimiser_gaps
from hessianlab.report.contents import Contents, contents_of
from hessianlab.report.labbook import render_labbook
from hessianlab.report.network_sentences import depth, loss_change, training
from hessianlab.report.sentences import activations_measured, finding, reconciled, separation, title
from hessianlab.report.story import SECTIONS, render_story
from hessianlab.results import Result
from hessianlab.wording import about, activation_in_words
from hessianlens.explorer.module import SOURCES
from hessianlens.explorer.standalone import SCENES, script_hash
from hessianlens.notation import ACTIVATION_NAMES
from tests.hessianlab.figures.small import SMALL
from tests.hessianlab.figures.test_separation import changed
from tests.hessianlab.report.page_parts import Tags
from tests.hessianlab.report.results import GROWTH, result
from tests.hessianlab.report.test_quotations import entry_with, ledger_verdicts, read_page

MOST_WORDS, MOST_BYTES = 2500, 800_000
SCENE_FILES = sorted((SOURCES / "scenes").glob("*.js"))
FIGURES = [name for name in (*SMALL, *GROWTH) if name not in ("fig2", "fig4", "temperature_path")]


def whole_ledger() -> Ledger:
    verdicts = ledger_verdicts()
    return Ledger(tuple(entry_with(claim.id, verdicts[claim.id]) for claim in all_claims() if claim.id in verdicts))


@pytest.fixture(scope="module")
def contents() -> Contents:
    return contents_of([result(name) for name in FIGURES], whole_ledger())


@pytest.fixture(scope="module")
def folder(contents: Contents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both pages, the lab book without its pictures."""
    place = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch:
        for module in ("figures", "recorded", "claims"):
            patch.setattr(f"hessianlab.report.{module}.panel_svgs", lambda *_: [])
        patch.setattr("hessianlab.report.recorded.draw_chart", lambda *_: None)
        labbook = render_labbook(list(contents.results.values()), contents.ledger, contents=contents)
    (place / "labbook.html").write_text(labbook, encoding="utf-8")
    (place / "index.html").write_text(render_story(contents, labbook), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def story(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def words(page: str) -> list[str]:
    """What is read on a page: without scripts, styles, pictures and what is shown on request."""
    text = re.sub(r"<(script|style|svg|template|title)\b.*?</\1>", " ", page, flags=re.S)
    return unescape(re.sub(r"<[^>]*>", "", text)).split()


def test_ten_minutes(story: str) -> None:
    assert 1000 < len(words(story)) <= MOST_WORDS
    assert len(story.encode()) <= MOST_BYTES


def test_every_scene_has_its_place_and_a_picture_without_script(story: str) -> None:
    places = re.findall(r'data-scene="(\w+)"', re.sub(r"<script.*?</script>", "", story, flags=re.S))
    assert places == [section.scene for section in SECTIONS] and set(places) == set(SCENES)
    for section in SECTIONS:
        start = story.index(f'id="{section.slug}"')
        own = story[start : story.index("</section>", start)]
        missing = section.scene == "depth"  # its figure takes minutes, and is not among the small ones
        shown = "still beneath" if section.beneath else "still"
        assert missing or f'<figure class="{shown}"><div class="panel"><svg role="img" aria-label="' in own, (
            section.scene
        )


def test_every_sentence_leads_into_the_lab_book(folder: Path, story: str) -> None:
    sentences = re.findall(r'<span class="s">(.*?)</span>(?= |</p>)', story, flags=re.S)
    assert len(sentences) > 30
    assert [s for s in sentences if not re.search(r'href="labbook\.html#[\w-]+"', s)] == []
    tags, other = Tags(), Tags()
    tags.feed(story)
    other.feed((folder / "labbook.html").read_text(encoding="utf-8"))
    assert tags.open == [] and len(tags.ids) == len(set(tags.ids))
    assert {link[1:] for link in tags.links if link.startswith("#")} <= set(tags.ids)
    elsewhere = [link for link in tags.links if not link.startswith("#")]
    assert {link.partition("#")[2] for link in elsewhere} <= set(other.ids)
    assert all(link.startswith("#") for link in tags.loaded), "a page loads nothing"
    assert {link.partition("#")[0] for link in elsewhere} == {"labbook.html"}
    assert "index.html" in other.links


def test_addresses_of_the_two_pages_are_different(folder: Path, story: str) -> None:
    own, other = Tags(), Tags()
    own.feed(story)
    other.feed((folder / "labbook.html").read_text(encoding="utf-8"))
    shared = {id for id in own.ids if id in other.ids and not id.startswith("hero-")}
    assert shared <= {"top", "meaning"}, "an old address leads to the lab book"


def test_scripts_are_allowed_by_their_hashes(story: str) -> None:
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", story, flags=re.S)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', story)
    policy = unescape(policy)
    assert len(scripts) == 3 and all(f"'{script_hash(script)}'" in policy for script in scripts)
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy


def test_no_sentence_of_the_story_says_another_verdict(contents: Contents, story: str) -> None:
    found = read_page(story, whole_ledger())
    assert found.wrong == []
    named = {one.id for section in SECTIONS for chapter in section.chapters for one in chapter.quoted}
    known = {slug for chapter, answer in contents.answers if answer for slug in [chapter.slug]}
    shown = {o.id for s in SECTIONS for c in s.chapters if c.slug in known for o in c.quoted}
    assert shown and shown <= set(found.quoted) <= named
    wrong = read_page(story.replace("A10 fails</a>", "A10 holds</a>"), whole_ledger())
    assert wrong.wrong == ["'A10 holds': the ledger has 'fails'"]


@pytest.mark.parametrize(
    ("mean", "low", "high", "words"),
    [
        (0.008, 0.0032, 0.013, "rises by 0.008 nats (0.0032 to 0.013)"),
        (-0.008, -0.013, -0.0032, "falls by 0.008 nats (0.0032 to 0.013)"),
        (0.002, -0.001, 0.005, "changes by 0.002 nats (−0.001 to 0.005)"),
    ],
)
def test_a_loss_rises_or_falls_where_its_interval_says_so(mean, low, high, words) -> None:
    assert loss_change(mean, low, high) == words


def test_scenes_call_activations_as_texts_do() -> None:
    shown = (SOURCES / "scenes" / "example.js").read_text(encoding="utf-8")
    table = dict(re.findall(r'(\w+): "([^"]+)"', shown[shown.index("KINDS = {") :].partition("}")[0]))
    names = {name: activation_in_words(name) for name in table if name in ACTIVATION_NAMES}
    assert len(names) >= 8 and {name: table[name] for name in names} == names


def separated(ratio: dict[str, float]) -> Contents:
    """Contents in which the value block is so many times the query block."""

    def change(asked, row):
        value = ratio[asked["activation"]] if row["block"] == "value" else 1.0
        return {**row, "rms": value, "norm": value}

    found: list[Result] = [changed(result(name), change) for name in ("activation_offset", "activation_scales")]
    return contents_of(found, None)


def test_the_finding_follows_the_numbers() -> None:
    held = separated({"softmax": 90.0, "sigmoid": 1440.0, "linear": 1.2})
    assert title(held).startswith("Softmax is not") and "a(0)" in finding(held)[-1]
    assert "[90 times]" in finding(held)[0] and "[1,400 times]" in finding(held)[1]
    other = separated({"softmax": 90.0, "sigmoid": 2.0, "linear": 1.2})
    assert title(other).endswith("?") and not any("What decides" in sentence for sentence in finding(other))
    assert separation(contents_of([], None)) == {} and finding(contents_of([], None)) == []


def test_a_zero_decides_whether_there_is_a_gap_and_not_how_wide_it_is() -> None:
    def said(sigmoid: float) -> str:
        return " ".join(activations_measured(separated({"softmax": 90.0, "sigmoid": sigmoid, "linear": 1.2})))

    assert "not how wide it is: sigmoid, with a(0) = 0.5, has [60]" in said(60.0)
    assert "with a(0) ≠ 0" in said(1440.0) and "not how wide" not in said(1440.0), "in the order of a(0)"


def test_two_quotations_on_softmax_are_reconciled_where_the_ledger_and_the_numbers_agree() -> None:
    small = separated({"softmax": 90.0, "sigmoid": 1440.0, "linear": 1.2})
    other = separated({"softmax": 90.0, "sigmoid": 60.0, "linear": 1.2})

    def said(contents: Contents, conclusion: Verdict) -> list[str]:
        ledger = Ledger((entry_with("P34", Verdict.HOLDS), entry_with("A10", conclusion)))
        return reconciled(dataclasses.replace(contents, ledger=ledger))

    (sentence,) = said(small, Verdict.FAILS)
    assert all(words in sentence for words in ("with linear, ", "[1.2]", "[1,400 times]", "against 90"))
    assert said(small, Verdict.HOLDS) == [] and said(other, Verdict.FAILS) == []
    assert said(separated({"softmax": 90.0, "sigmoid": 1440.0, "linear": 30.0}), Verdict.FAILS) == [], "not alike"


def test_scenes_have_the_verdicts_of_the_claims_they_decide(story: str) -> None:
    rules = dict(re.findall(r'\.claims a\[href\$="#claim-(\w+)"\]::after { content: " ([\w ]+)"; }', story))
    named = {id for scene in SCENE_FILES for id in re.findall(r"\b([PABCD]\d+): \"", scene.read_text("utf-8"))}
    verdicts = {entry.claim.id: str(entry.verdict) for entry in whole_ledger()}
    assert rules["B9"] == "fails" and rules == {id: verdicts[id] for id in verdicts.keys() & named}


def test_the_ledger_is_explained_once_and_conditions_stand_behind_their_verdicts(story: str) -> None:
    first, *others = re.findall(r'<p class="quoted">(.*?)</p>', story, flags=re.S)
    total = len(whole_ledger())
    assert f"each of {total} claims" in first and others and not any("claims of a paper" in other for other in others)
    conditional = re.findall(r">\w+ holds if</a> ([^<,]+)\.", story)
    assert conditional[0] == "it is so" and set(conditional[1:]) == {"the same is so"}
    assert len(conditional) == story.count("holds if</a>")


def test_explanations_come_before_scenes(story: str) -> None:
    for section in SECTIONS:
        own = story[story.index(f'id="{section.slug}"') :]
        assert own.index('class="answer"') < own.index('class="stage"') < own.index("</section>")


def test_what_is_said_of_adam_is_recorded() -> None:
    said = " ".join(training(contents_of([], None)))
    gaps = [gap.mean for gap in optimiser_gaps(StudyRecord(ANSWERING)).values()]
    assert f"of {len(gaps)}](#recorded-study_optimisers) designs, by {about(min(gaps))} to {about(max(gaps))}" in said


def test_what_is_said_of_the_norm_follows_the_ledger() -> None:
    results = [result("fig3a"), dataclasses.replace(result("fig3a"), experiment="fig3b")]
    said = [
        " ".join(depth(contents_of(results, Ledger((entry_with("A30", verdict),)))))
        for verdict in (Verdict.FAILS, Verdict.HOLDS)
    ]
    assert "with softmax and without" in said[0] and "with softmax and without" not in said[1]
    assert all("layer norm" in text for text in said)


def test_a_run_without_figures_has_a_story_too() -> None:
    page = render_story(contents_of([], None), "<p id='top'></p>")
    assert page.count("data-scene=") >= len(SECTIONS) and "What makes attention’s curvature uneven?" in page


def test_two_digits_are_enough() -> None:
    assert [about(x) for x in (0.86, 9.96, 73.3, 172.7, 1403.0)] == ["0.86", "10", "73", "170", "1,400"]


def test_the_verdict_at_the_top_is_that_of_the_ledger() -> None:
    for verdict in (Verdict.FAILS, Verdict.HOLDS):
        page = render_story(contents_of([], Ledger((entry_with("A10", verdict),))), "")
        (quote,) = re.findall(r"<blockquote.*?</blockquote>", page, flags=re.S)
        assert f">{verdict}</span>" in quote


# --- in a browser ----------------------------------------------------------------------------------------------------

ACTIVATION = "return document.querySelector('[data-scene=activation]')?.textContent"


def until(reached: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether something comes about in time, on a machine that has other work to do."""
    end = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


WAIT = "return new Promise(done => setTimeout(done, arguments[0]))"


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 768, 1440])
@pytest.mark.parametrize("name", ["index", "labbook"])
def test_both_pages_on_every_screen(page, folder, name, width, dark):
    page.open(folder / f"{name}.html", width=width, dark=dark)
    page.run(WAIT, 200)
    assert page.console_errors() == [] and page.outside_requests() == []
    assert page.overflow() <= 0


@pytest.mark.browser
def test_scenes_are_alive_and_remember_where_they_are(page, folder):
    page.open(folder / "index.html")
    assert page.run("return document.querySelectorAll('[data-scene] svg').length") >= len(SECTIONS)
    assert not page.run("return document.querySelector('.still').checkVisibility()")
    assert page.run("return document.querySelector('.still.beneath').checkVisibility()")
    before = page.run(ACTIVATION)
    page.run(
        "const slider = document.querySelector('[data-scene=activation] input[type=range]');"
        "slider.value = slider.max; slider.dispatchEvent(new Event('input', { bubbles: true }))"
    )
    assert until(lambda: page.run(ACTIVATION) != before)
    assert until(lambda: "activation=" in page.run("return location.href"))
    after, address = page.run(ACTIVATION), page.run("return location.href")
    page.run("location.reload()")
    assert until(lambda: page.run(ACTIVATION) == after) and page.run("return location.href") == address


@pytest.mark.browser
@pytest.mark.parametrize("address", ["claim-A12", "fig1", "softmax", "word-block", "exponents"])
def test_old_addresses_lead_to_the_lab_book(page, folder, address):
    page.open(folder / "index.html", fragment=f"#{address}")
    assert until(lambda: page.run("return location.href").endswith(f"labbook.html#{address}"))
    assert page.run("return Boolean(document.getElementById(arguments[0]))", address)


@pytest.mark.browser
def test_words_and_claims_say_what_they_mean(page, folder):
    page.open(folder / "index.html", width=390)
    for chosen in ("a.word", ".quoted a[data-meaning]"):
        page.run("document.querySelector(arguments[0]).click()", chosen)
        assert page.run("return meaning.matches(':popover-open') && meaning.innerText.length > 20")
        more = page.run("return meaning.querySelector(':scope > p a').getAttribute('href')")
        assert more.startswith("labbook.html#") and page.overflow() <= 0
        page.run("meaning.hidePopover()")


@pytest.mark.browser
def test_without_script_and_on_paper_pictures_stand_in_for_scenes(page, folder, tmp_path):
    text = (folder / "index.html").read_text(encoding="utf-8")
    file = tmp_path / "bare.html"
    file.write_text(re.sub(r"<script.*?</script>", "", text, flags=re.S), encoding="utf-8")
    seen = "return Array.from(document.querySelectorAll('.still')).every(still => still.checkVisibility())"
    page.open(file, width=390)
    assert page.run(seen) and page.overflow() <= 0 and page.smallest_figure_text() >= 12
    page.open(folder / "index.html")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.run(seen) and page.run("return document.querySelector('.bar').checkVisibility()") is False
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
