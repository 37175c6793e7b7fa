"""The ledger on the page: a legend of every verdict, counts that add up, filters, and colours that can be read."""

import re
from pathlib import Path

import pytest

from hessianlab.claims.finding import Verdict
from hessianlab.claims.ledger import Entry, Ledger
from hessianlab.report import render_labbook
from hessianlab.report.claims import MEANINGS, STYLES, ledger_chapter, verdict_counts
from tests.hessianlab.report.test_labbook import SHOWN, TYPE
from tests.hessianlab.report.test_quotations import entry_with

ONE_OF_EACH = {
    "C8": Verdict.HOLDS,
    "C3": Verdict.HOLDS_IF,
    "C10": Verdict.FAILS,
    "C1": Verdict.MISPRINT,
    "C22": Verdict.NOT_SEEN,
    "C40": Verdict.OPEN,
}
LEDGER = Ledger(tuple(entry_with(id, verdict) for id, verdict in ONE_OF_EACH.items()))


@pytest.fixture(scope="module")
def ledger_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("ledger") / "index.html"
    file.write_text(render_labbook([], LEDGER), encoding="utf-8")
    return file


def test_every_verdict_has_a_colour_and_a_meaning_of_its_own() -> None:
    assert len(set(STYLES.values())) == len(STYLES) and set(MEANINGS) == set(STYLES) >= set(Verdict)
    assert [one.verdict for one in verdict_counts(LEDGER)] == list(map(str, Verdict))


def test_legend_and_counts(ledger_file: Path) -> None:
    page = ledger_file.read_text(encoding="utf-8")
    for one in verdict_counts(LEDGER):
        assert f'<dt><span class="chip {one.style}">{one.verdict}: 1</span></dt><dd>{one.meaning}</dd>' in page
    assert "Of the other 5 claims 1 holds under a condition, 1 fails, 1 is a misprint" in page
    (opened,) = re.findall(r"Open: (.*?)\.</p>", page, flags=re.S)
    assert re.findall(r">(\w+)<", opened) == ["C40"], "a claim that is not seen at this size has a verdict"


def test_a_verdict_that_does_not_occur_has_no_column() -> None:
    some = Ledger(tuple(entry for entry in LEDGER if entry.claim.id in ("C8", "C10", "C40")))
    shown = ledger_chapter(some)
    assert [one.verdict for one in shown.verdicts] == ["holds", "fails", "open"]
    assert [row.numbers for row in shown.counts] == [(1, 1, 1), (1, 1, 1)] and shown.counts[0].total == 3
    broken = Ledger((*some, Entry(LEDGER["C1"].claim, error="ZeroDivisionError")))
    assert ledger_chapter(broken).counts[-1].numbers == (1, 1, 1, 1)


CONTRAST = """
const channel = (c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const light = (colour) => {
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
  return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
};
const ground = (e) => {
  const own = getComputedStyle(e).backgroundColor;
  return own !== "rgba(0, 0, 0, 0)" || !e.parentElement ? own : ground(e.parentElement);
};
return Array.from(document.querySelectorAll("#claims .chip, #claims .mosaic a, .tested .chip, .quoted a")).map((e) => {
  const [one, two] = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => b - a);
  return [e.className + " " + e.textContent.trim(), (one + 0.05) / (two + 0.05)];
});
"""


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_colours_of_verdicts_can_be_read(page, ledger_file, dark):
    page.open(ledger_file, dark=dark)
    found = page.run(CONTRAST)
    assert len(found) > 4 * len(ONE_OF_EACH)
    assert [(what, ratio) for what, ratio in found if ratio < 4.5] == []


@pytest.mark.browser
def test_every_verdict_filters(page, ledger_file):
    page.open(ledger_file)
    for id, verdict in ONE_OF_EACH.items():
        box = f"input[name=verdict][value='{verdict}']"
        page.run(TYPE, box, True)
        assert page.run(SHOWN) == [id]
        page.run(TYPE, box, False)
    assert set(page.run(SHOWN)) == set(ONE_OF_EACH)
    page.run(TYPE, "select[name=topic]", "moments")
    assert page.run(SHOWN) == ["C22"]
    page.run(TYPE, "input[name=verdict][value=fails]", True)
    assert page.run(SHOWN) == [], "both filters at once"
