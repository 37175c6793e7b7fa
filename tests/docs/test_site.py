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

ROOT = Path(__file__).resolve().parents[2]

NO_NETWORK = "import socket; socket.getaddrinfo = lambda *a, **b: exit('asked the network')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a copy of what git knows, without the gallery's runs."""
    made = tmp_path_factory.mktemp("site")
    build = f"{NO_NETWORK}; from sphinx.cmd.build import main; import sys; sys.exit(main(sys.argv[1:]))"
    options = ["-W", "--keep-going", "-q", "-b", "html", "-D", "plot_gallery=0", "-E", "-d", str(made / "trees")]
    done = subprocess.run(
        [sys.executable, "-c", build, *options, "docs", str(made / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return made / "html"


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
            if gone or lost:
                yield f"{file.relative_to(site)}: {link}"


@pytest.mark.long
def test_links_inside_of_the_site_lead_somewhere(site: Path) -> None:
    assert sorted(set(broken(site))) == []


@pytest.mark.long
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|img|iframe)[^>]*src=\"(?:https?:)?//|<link[^>]*rel=\"stylesheet\"[^>]*href=\"(?:https?:)?//"
    )
    assert [str(file.relative_to(site)) for file in site.rglob("*.html") if loads.search(file.read_text())] == []


@pytest.mark.long
def test_every_public_name_has_a_page(site: Path) -> None:
    pages = {file.stem for file in (site / "reference/generated").glob("hessianlens.*.html")}
    modules = {name for name in hl.__all__ if type(getattr(hl, name)).__name__ == "module"}
    assert {f"hessianlens.{name}" for name in hl.__all__ if name not in modules} <= pages
    assert len(pages) > 80


@pytest.mark.long
def test_formulas_are_rendered_and_search_has_an_index(site: Path) -> None:
    page = (site / "start/tutorial.html").read_text(encoding="utf-8")
    assert 'class="katex"' in page or "katex.min.js" in page
    assert "hutchinson" in (site / "searchindex.js").read_text(encoding="utf-8").lower()
