"""The page: self-contained, complete, with no number that is not in the results, and as it works in a browser."""

import dataclasses
import re
from html import unescape
from pathlib import Path

import pytest

from hessianlab.claims.catalogue import find
from hessianlab.claims.ledger import run
from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.growth.exponents import exponent_fits
from hessianlab.growth.reference import PublishedPoint, Reference, published_key
from hessianlab.pages import typeset
from hessianlab.presentations import findings_of
from hessianlab.report.exponents import exponent_rows, summary
from hessianlab.report.figures import command, page_figure
from hessianlab.report.references import LIST, code_address
from hessianlab.runner import configure
from hessianlens.explorer.standalone import script_hash
from tests.hessianlab.figures.small import SMALL
from tests.hessianlab.report.page_parts import Tags
from tests.hessianlab.report.results import CLAIMS, GROWTH, NAMES, result

ROOT = Path(__file__).parents[3]


def test_well_formed_and_self_contained(report: str) -> None:
    tags = Tags()
    tags.feed(report)
    assert tags.open == [] and len(tags.ids) == len(set(tags.ids))
    assert all(link.startswith(("#", "data:")) for link in tags.loaded), "a page loads nothing"
    sources = code_address("") or "no address of the sources"  # of an installed package
    outside = {link for link in tags.links if not link.startswith(("#", sources))}
    assert outside == {address for document in LIST for _, address in document.links} | {"index.html"}
    assert {link[1:] for link in tags.links if link.startswith("#")} <= set(tags.ids)


def test_the_code_of_a_claim_goes_wherever_the_page_goes(report: str) -> None:
    shown = re.findall(r"<summary><code>([^<]*)</code></summary><pre><code>(.*?)</code></pre>", report, flags=re.S)
    assert len(shown) == len(CLAIMS)
    for location, code in shown:
        file, _, line = location.partition(":")
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        told = unescape(code).splitlines()
        assert told == lines[int(line) - 1 : int(line) - 1 + len(told)] and told[0].startswith(("@claim(", "["))
        after = lines[int(line) - 1 + len(told) :]
        assert len(told) > 2 and (not after or not after[0].strip()), "it ends where the function or the section does"


def test_tables_have_captions_and_headings_a_scope(report: str) -> None:
    tables = re.findall(r"<table.*?</table>", report, flags=re.S)
    assert tables and all("<caption>" in table for table in tables)
    assert all("<th" in table and not re.search(r"<th(?! scope)(?=[ >])", table) for table in tables)


def test_what_is_read_out_for_a_picture_states_the_finding(report: str) -> None:
    labels = re.findall(r'<svg role="img" aria-label="([^"]*)"', report)
    assert len(labels) > 20 and [label for label in labels if len(label) < 60] == []


def test_the_one_script_is_allowed_by_its_hash(report: str) -> None:
    (script,) = re.findall(r"<script>(.*?)</script>", report, flags=re.S)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', report)
    assert f"script-src '{script_hash(script)}';" in policy.replace("&#39;", "'") and "default-src 'none'" in policy
    assert report.count("<script") == 1


def plain(words: str) -> str:
    """As it is read on the page: typeset, without tags."""
    return unescape(re.sub(r"<[^>]*>", "", typeset(words)))


def test_every_figure_tells_what_was_asked_found_and_how_to_repeat_it(report: str) -> None:
    text = unescape(re.sub(r"<[^>]*>", "", report))
    for name in NAMES:
        experiment = EXPERIMENTS[name]
        assert f'<article class="figure" id="{name}">' in report
        assert plain(experiment.question) in text and experiment.title in text
        for sentence in findings_of(result(name)).sentences(result(name)):
            assert plain(sentence) in text
        assert f"hessianlens reproduce {name} --preset " in text
    assert "commit" in text and "torch" in text


def test_claims_show_their_figures(report: str) -> None:
    assert f"{len(CLAIMS)} statements of the documents" in report and report.count('class="claim"') == len(CLAIMS)
    places = [report.index(f'id="claim-{id}"') for id in CLAIMS]
    assert places == sorted(places), "in the order of their document"
    for entry, place in zip(run(find(CLAIMS)).entries, places, strict=True):
        assert f">{entry.verdict}<" in report[place : place + 500]
    assert report.count('href="#claim-C1"') >= 2, "from the mosaic and from its chapter"


def test_an_edited_number_changes_the_page() -> None:
    before = result("fig8")
    cells = tuple(
        dataclasses.replace(
            cell,
            measurement=dataclasses.replace(
                cell.measurement,
                rows=tuple({**row, "value": row["value"] * cell.parameters["sigma"]} for row in cell.measurement.rows),
            ),
        )
        for cell in before.cells
    )
    rows = exponent_rows([dataclasses.replace(before, cells=cells)])
    assert {row.measured for row in rows} == {"3.00"} or all(row.measured.startswith(("2.9", "3.0")) for row in rows)
    assert all(row.differs for row in rows) and not any(row.differs for row in exponent_rows([before]))
    assert summary(rows).startswith(f"Of the exponents predicted by counting powers of σ, 0 of {len(rows)} agree")


def test_the_table_lists_every_prediction_once() -> None:
    results = [result(name) for name in GROWTH]
    fits = [fit for r in results for fit in exponent_fits(r) if fit.predicted is not None or fit.paper is not None]
    rows = exponent_rows(results)
    assert [row.series for row in rows] == [fit.series.in_words() for fit in fits]
    assert [row.first for row in rows].count(True) == len(results)


@pytest.mark.long
def test_published_means_are_compared() -> None:
    at_size = dataclasses.replace(result("fig8"), config={**result("fig8").config, "d_model": 128, "sequences": 64})
    key = published_key(at_size.config, 1, 0, "mlp", "full")
    assert key is not None
    first = [cell for cell in at_size.cells if cell.parameters["layers"] == 1]
    sigma = first[0].parameters["sigma"]
    mean = sum(c.measurement.rows[0]["value"] for c in first if c.parameters["sigma"] == sigma) / 3
    reference = Reference({key: (PublishedPoint(sigma, mean * 1.01, mean * 0.1, 20, 0, 0),)}, None)
    (row,) = page_figure(at_size, reference).published
    assert row["points"] == "1" and row["within_2"] == "100%" and row["ratio"].startswith("0.990 ± ")
    assert "Of 1 published points 100% lie within two" in page_figure(at_size, reference).published_summary
    assert page_figure(result("fig8"), reference).published == (), "another size is not compared"
    chained = dataclasses.replace(at_size, config={**at_size.config, "carries": "chains"})
    assert page_figure(chained, reference).published == (), "nor is another batch"


@pytest.mark.expensive
@pytest.mark.parametrize("name", [*SMALL, *GROWTH])
def test_the_command_repeats_the_configuration(name: str) -> None:
    words = command(result(name)).split()
    assert words[:3] == ["hessianlens", "reproduce", name] and words[3] == "--preset"
    settings = [words[k + 1] for k, word in enumerate(words) if word == "--set"]
    (plan,) = configure([EXPERIMENTS[name]], words[4], settings)
    assert dataclasses.asdict(plan.config) == result(name).config


# --- in a browser ----------------------------------------------------------------------------------------------------

SHOWN = "return Array.from(document.querySelectorAll('details.claim:not([hidden])')).map(c => c.id.slice(6))"
COUNT = "return document.querySelector('#ledger-controls output').textContent"
TYPE = """
const field = document.querySelector(arguments[0]);
if (field.type === "checkbox") field.checked = arguments[1]; else field.value = arguments[1];
field.dispatchEvent(new Event("input", { bubbles: true }));
"""


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_screen(page, report_file, width, dark):
    page.open(report_file, width=width, dark=dark)
    assert page.console_errors() == [] and page.outside_requests() == []
    assert page.overflow() <= 0
    page.run("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.overflow() <= 0, "nor when all is unfolded"
    assert page.smallest_figure_text() >= 12


@pytest.mark.browser
def test_search_filters_and_sort(page, report_file):
    page.open(report_file)
    assert page.run(SHOWN) == list(CLAIMS)
    page.run(TYPE, "input[name=search]", "temperature")
    assert page.run(SHOWN) == ["C40"] and page.run(COUNT) == f"1 of {len(CLAIMS)} claims"
    page.run(TYPE, "input[name=search]", "")
    page.run(TYPE, "input[name=verdict][value=fails]", True)
    assert page.run(SHOWN) == ["C10", "C28"]
    counted = "return document.querySelector('input[name=document][value=C]').parentElement.querySelector('.count')"
    assert page.run(f"{counted}.textContent") == "2", "counts follow the other filters"
    page.run(TYPE, "select[name=topic]", "softmax")
    assert page.run(SHOWN) == ["C10", "C28"]
    page.run("document.querySelector('button[name=reset]').click()")
    page.run(TYPE, "select[name=sort]", "surprise")
    assert set(page.run(SHOWN)[:2]) == {"C10", "C28"} and len(page.run(SHOWN)) == len(CLAIMS)
    page.run(TYPE, "select[name=sort]", "")
    assert page.run(SHOWN) == list(CLAIMS)
    page.run(
        "window.moved = 0;"
        "new MutationObserver(l => moved += l.length).observe(ledger, { childList: true, subtree: true })"
    )
    page.run(TYPE, "input[name=search]", "temperature")
    assert page.run("return new Promise(done => setTimeout(() => done(moved), 50))") == 0, "searching moves no entry"


@pytest.mark.browser
def test_an_address_opens_its_claim(page, report_file):
    page.open(report_file, fragment="#claim-C40")
    opened = "return [document.getElementById(arguments[0]).open, document.getElementById(arguments[0]).hidden]"
    assert page.run(opened, "claim-C40") == [True, False] and page.run(opened, "claim-C1") == [False, False]
    assert abs(page.run("return document.getElementById('claim-C40').getBoundingClientRect().top")) < 300
    page.run(TYPE, "input[name=search]", "temperature")
    page.run("document.querySelector('.mosaic a[href=\"#claim-C1\"]').click()")
    page.run("return new Promise(done => setTimeout(done, 50))")
    assert page.run(opened, "claim-C1") == [True, False], "also one that a filter hides"


@pytest.mark.browser
def test_a_word_says_what_it_means_where_it_stands(page, report_file):
    page.open(report_file)
    page.run("document.querySelector('a.word').focus()")
    page.run("document.activeElement.click()")  # what Enter and a tap do
    said = page.run(
        "return [meaning.matches(':popover-open'), meaning.textContent, document.querySelector('a.word').hash]"
    )
    meaning = page.run("return document.querySelector(arguments[0]).nextElementSibling.textContent", said[2])
    assert (
        said[0]
        and meaning in said[1]
        and page.run("return document.activeElement.parentElement.parentElement.id") == "meaning"
    )
    page.run("meaning.hidePopover()")
    assert page.run("return document.activeElement.matches('a.word')"), "the reader is back where the word stands"


@pytest.mark.browser
def test_the_chapter_that_is_read_is_marked(page, report_file):
    page.open(report_file, fragment="#exponents")
    marked = "return Array.from(document.querySelectorAll('.contents [aria-current]')).map(a => a.hash)"
    page.run("return new Promise(done => setTimeout(done, 100))")
    assert page.run(marked) == ["#exponents"]
    page.run("scrollTo(0, 0); return new Promise(done => setTimeout(done, 100))")
    assert page.run(marked) == ["#top"]


@pytest.mark.browser
def test_frames_are_shown_one_at_a_time(page, report_file):
    page.open(report_file, width=390)
    frames = page.run("return document.querySelectorAll('.slider .frame').length")
    if not frames:
        pytest.skip("no figure with frames")
    visible = "return Array.from(document.querySelectorAll('.slider .frame')).findIndex(f => f.checkVisibility())"
    shown = "return Array.from(document.querySelectorAll('.slider .frame')).filter(f => f.checkVisibility()).length"
    label = "return document.querySelector('.slider output').textContent"
    before = page.run(label)
    for place in (frames - 1, 0):
        page.run(TYPE, ".slider input", str(place))
        assert page.run("return document.querySelector('.slider input').getAttribute('aria-valuetext')") == page.run(
            label
        )
        assert page.run(visible) == place and page.run(shown) == 1
    assert page.run(label) != before


@pytest.mark.browser
def test_everything_is_there_without_the_script(page, report_file, tmp_path):
    text = report_file.read_text(encoding="utf-8")
    start, end = text.index("<script>"), text.index("</script>")
    file = tmp_path / "bare.html"
    file.write_text(text[:start] + text[end + 9 :], encoding="utf-8")
    page.open(file, width=390)
    assert page.run(SHOWN) == list(CLAIMS) and page.overflow() <= 0
    assert page.run("return document.getElementById('ledger-controls').checkVisibility()") is False


@pytest.mark.browser
def test_the_printed_page_shows_what_is_folded(page, report_file):
    page.open(report_file)
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        seen = "return Array.from(document.querySelectorAll(arguments[0])).every(e => e.checkVisibility())"
        assert page.run(seen, ".claim dl dt") and page.run(seen, ".card details li")
        assert not page.run("return document.querySelector('.contents').checkVisibility()")
        paper = {"width": 718, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", paper)
        assert page.overflow() <= 0, "nothing is cut off on A4"
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
