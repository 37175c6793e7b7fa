"""The site's own search and its first page lead a newcomer to the page that answers a question."""

from __future__ import annotations

import re
import time
from pathlib import Path
from urllib.parse import quote_plus

from tests.browser import Page

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = {
    "own attention": "how-to/own-attention",
    "attention variant": "how-to/own-attention",
    "per-head curvature": "how-to/heads",
    "how exact": "explanation/exactness",
    "cluster": "how-to/slurm",
    "slurm": "how-to/slurm",
    "multi-node": "how-to/slurm",
    "monitor training": "how-to/monitor",
    "smaller learning rate": "how-to/learning-rates",
    "new activation": "how-to/own-activation",
    "out of memory": "how-to/memory",
    "memory limit": "how-to/memory",
    "cuda": "how-to/gpu",
    "gpu": "how-to/gpu",
    "float32": "how-to/precision",
    "bfloat16": "how-to/precision",
    "lora": "how-to/lora",
    "torch.compile": "how-to/compile",
    "why sampled": "how-to/why-sampled",
    "bibtex": "start/cite",
    "cite": "start/cite",
    "tied embeddings": "how-to/tied-embeddings",
    "qk norm": "explanation/query-key-norm",
    "sinks": "how-to/attention-health",
    "compare checkpoints": "how-to/looking",
    "checkpoints": "how-to/monitor",
    "curvlinops operators together": "how-to/curvlinops",
    "kfac": "how-to/kronecker",
    "ddp": "how-to/distributed",
    "custom loss": "how-to/models",
    "long context": "how-to/memory",
    "supported models": "reference/families",
    "benchmarks": "laboratory/generated/benchmarks",
    "install": "start/install",
}
"""What a newcomer types, and the page that answers it."""

FOUND = """
const links = Array.from(document.querySelectorAll("#search-results ul.search > li > a"));
const status = document.querySelector("#search-results .search-summary");
return status && /found|did not match/.test(status.innerText) ? links.map(link => link.getAttribute("href")) : null;
"""


def pages_found(page: Page, site: Path, query: str) -> list[str]:
    """Pages of the site's search in the order shown, each once."""
    page.open(site / "search.html", fragment=f"?q={quote_plus(query)}")
    for _ in range(200):
        links = page.run(FOUND)
        if links is not None:
            return list(dict.fromkeys(re.split(r"\.html|\?", link)[0] for link in links))
        time.sleep(0.05)
    raise AssertionError(f"the search for {query} does not end")


def unanswered(page: Page, site: Path) -> dict[str, list[str]]:
    """Queries whose answer is not among the first three pages found, with what was found instead."""
    found = {query: pages_found(page, site, query) for query in QUESTIONS}
    return {query: found[query][:4] for query, answer in QUESTIONS.items() if answer not in found[query][:3]}


def test_the_list_of_questions_names_every_answer() -> None:
    """Two clicks from the first page: the list of questions, and the answer."""
    first = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    assert "(how-to/index.md)" in first and "(start/index.md)" in first and "(reference/index.md)" in first
    listed = (ROOT / "docs/how-to/index.md").read_text(encoding="utf-8")
    for answer in {
        page for page in QUESTIONS.values() if page.startswith(("how-to/", "explanation/exactness", "start/"))
    }:
        assert f"{answer.removeprefix('how-to/')}.md" in listed, answer


def test_every_page_of_the_guide_has_words_to_be_found_by() -> None:
    for folder in ("how-to", "start"):
        for file in (ROOT / "docs" / folder).glob("*.md"):
            if file.stem != "index":
                assert re.match(
                    r"---\nmyst:\n  html_meta:\n    keywords: \w+, \w+", file.read_text(encoding="utf-8")
                ), file
