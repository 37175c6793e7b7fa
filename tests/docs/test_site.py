"""The site builds without a warning and without the network, and its pages have what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import hessianlens as hl
from tests.browser import CHROMIUM, DRIVER
from tests.docs.test_search import unanswered

ROOT = Path(__file__).resolve().parents[2]

NO_NETWORK = "import socket; socket.getaddrinfo = lambda *a, **b: exit('asked the network')"


EXAMPLES = sorted(file.stem for file in (ROOT / "examples").glob("plot_*.py"))


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_the_site_is_built_strictly_and_every_example_runs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One test, so that the site is built once: warnings are errors, an example that raises too, nothing is fetched."""
    build = f"{NO_NETWORK}; from sphinx.cmd.build import main; import sys; sys.exit(main(sys.argv[1:]))"
    options = ["-W", "--keep-going", "-q", "-b", "html", "-E", "-d", str(tmp_path / "trees")]
    log = tmp_path / "log"
    with log.open("w") as output:  # no pipe: what a broken build leaves behind would keep it open
        done = subprocess.run(
            [sys.executable, "-c", build, *options, "docs", str(tmp_path / "html")],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=2000,
        )
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-5000:]
    site = tmp_path / "html"
    assert sorted(set(broken(site))) == []
    assert fetched(site) == []
    assert names_without_page(site) == []
    assert examples_without_page(site) == []
    formulas_are_rendered(site)
    assert "hutchinson" in (site / "searchindex.js").read_text(encoding="utf-8").lower()
    if CHROMIUM and DRIVER:
        assert unanswered(request.getfixturevalue("page"), site) == {}


class Page(HTMLParser):
    """Links, sources and anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        link = given.get("href") if tag in ("a", "link") else given.get("src")
        self.links += [link] if link else []


def broken(site: Path) -> Iterator[str]:
    """Links inside of the site that lead nowhere, and anything a page would load from elsewhere."""
    files = [file for file in site.rglob("*.html") if "_static" not in file.parts]
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in files}
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            gone = not target.exists()
            lost = parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors
            # viewcode takes one public module per file; each name has a page of its own, where its link leads anyway
            lost = lost and "_modules" not in file.parts
            if gone or lost:
                yield f"{file.relative_to(site)}: {link}"


def fetched(site: Path) -> list[str]:
    """Pages that load something from elsewhere."""
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//|<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//"
    )
    return [str(file.relative_to(site)) for file in site.rglob("*.html") if loads.search(file.read_text())]


def names_without_page(site: Path) -> list[str]:
    """Public names that the reference lacks."""
    pages = {file.stem for file in (site / "reference/generated").glob("hessianlens.*.html")}
    modules = {name for name in hl.__all__ if type(getattr(hl, name)).__name__ == "module"}
    return [name for name in hl.__all__ if name not in modules and f"hessianlens.{name}" not in pages]


def examples_without_page(site: Path) -> list[str]:
    """Examples without page, picture or notebook."""
    pictures = {file.name for file in (site / "_images").glob("sphx_glr_plot_*_thumb.png")}
    notebooks = {file.stem for file in (site / "_downloads").rglob("plot_*.ipynb")}
    page = site / "gallery"
    return [
        name
        for name in EXAMPLES
        if f"sphx_glr_{name}_thumb.png" not in pictures
        or name not in notebooks
        or "sphx_glr_" + name + "_001.png" not in (page / f"{name}.html").read_text(encoding="utf-8")
    ]


def formulas_are_rendered(site: Path) -> None:
    page = (site / "start/tutorial.html").read_text(encoding="utf-8")
    assert 'class="katex"' in page or "katex.min.js" in page


def test_there_are_enough_examples_and_each_opens_with_its_finding_and_ends_with_links() -> None:
    assert len(EXAMPLES) >= 14
    for name in EXAMPLES:
        text = (ROOT / f"examples/{name}.py").read_text(encoding="utf-8")
        opening = text.split('"""')[1].strip().splitlines()
        assert set(opening[1]) == {"="} and opening[3], name
        assert ":doc:" in text.rpartition("# %%")[2], name
