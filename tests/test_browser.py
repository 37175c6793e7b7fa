import pytest

PAGE = """<!doctype html><meta name="viewport" content="width=device-width, initial-scale=1">
<body style="margin:0;background:Canvas;color-scheme:light dark">
<div style="width:500px">wide</div>
<svg width="100" viewBox="0 0 200 100"><text x="10" y="50" font-size="14">small</text></svg>
<script>console.error("said"); fetch("https://example.invalid/a").catch(() => 0)</script>"""


@pytest.mark.browser
def test_the_browser_sees_what_a_page_does_wrong(page, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE)
    page.open(file, width=390, height=800)
    assert page.overflow() == 110
    assert page.smallest_figure_text() == pytest.approx(7)
    assert any("said" in line for line in page.console_errors())
    assert page.outside_requests() == ["https://example.invalid/a"]
    assert page.picture(tmp_path / "page.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(page, tmp_path, dark):
    file = tmp_path / "page.html"
    file.write_text(PAGE)
    assert page.open(file, dark=dark).run("return matchMedia('(prefers-color-scheme: dark)').matches") is dark
