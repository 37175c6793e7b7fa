"""The page as a reader meets it: in a real browser."""

import pytest

from tests.hessianlab.report.results import CLAIMS

pytestmark = pytest.mark.browser

SHOWN = "return Array.from(document.querySelectorAll('details.claim:not([hidden])')).map(c => c.id.slice(6))"
COUNT = "return document.querySelector('#ledger-controls output').textContent"
TYPE = """
const field = document.querySelector(arguments[0]);
if (field.type === "checkbox") field.checked = arguments[1]; else field.value = arguments[1];
field.dispatchEvent(new Event("input", { bubbles: true }));
"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1440])
def test_every_screen(page, report_file, width, dark):
    page.open(report_file, width=width, dark=dark)
    assert page.console_errors() == [] and page.outside_requests() == []
    assert page.overflow() <= 0
    page.run("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.overflow() <= 0, "nor when all is unfolded"
    assert page.smallest_figure_text() >= 12


def test_search_filters_and_sort(page, report_file):
    page.open(report_file)
    assert page.run(SHOWN) == list(CLAIMS)
    page.run(TYPE, "input[name=search]", "temperature")
    assert page.run(SHOWN) == ["C40"] and page.run(COUNT) == f"1 of {len(CLAIMS)} claims"
    page.run(TYPE, "input[name=search]", "")
    page.run(TYPE, "input[name=verdict][value=fails]", True)
    assert page.run(SHOWN) == ["C1", "C10", "C31"]
    counted = "return document.querySelector('input[name=document][value=C]').parentElement.querySelector('.count')"
    assert page.run(f"{counted}.textContent") == "3", "counts follow the other filters"
    page.run(TYPE, "select[name=topic]", "softmax")
    assert page.run(SHOWN) == ["C1", "C10"]
    page.run("document.querySelector('button[name=reset]').click()")
    page.run(TYPE, "select[name=sort]", "surprise")
    assert set(page.run(SHOWN)[:3]) == {"C1", "C10", "C31"} and len(page.run(SHOWN)) == len(CLAIMS)
    page.run(TYPE, "select[name=sort]", "")
    assert page.run(SHOWN) == list(CLAIMS)


def test_an_address_opens_its_claim(page, report_file):
    page.open(report_file, fragment="#claim-C40")
    opened = "return [document.getElementById(arguments[0]).open, document.getElementById(arguments[0]).hidden]"
    assert page.run(opened, "claim-C40") == [True, False] and page.run(opened, "claim-C1") == [False, False]
    assert abs(page.run("return document.getElementById('claim-C40').getBoundingClientRect().top")) < 300
    page.run(TYPE, "input[name=search]", "temperature")
    page.run("document.querySelector('.mosaic a[href=\"#claim-C1\"]').click()")
    page.run("return new Promise(done => setTimeout(done, 50))")
    assert page.run(opened, "claim-C1") == [True, False], "also one that a filter hides"


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
        assert page.run(visible) == place and page.run(shown) == 1
    assert page.run(label) != before


def test_everything_is_there_without_the_script(page, report_file, tmp_path):
    text = report_file.read_text(encoding="utf-8")
    start, end = text.index("<script>"), text.index("</script>")
    file = tmp_path / "bare.html"
    file.write_text(text[:start] + text[end + 9 :], encoding="utf-8")
    page.open(file, width=390)
    assert page.run(SHOWN) == list(CLAIMS) and page.overflow() <= 0
    assert page.run("return document.getElementById('ledger-controls').checkVisibility()") is False


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
