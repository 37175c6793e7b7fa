"""The tree of the contributor page is that of the repository, and README leads to what is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("hessianlens", "hessianlab")


TREE = "docs/contributing/development.md"


def tree(page: str) -> str:
    """The block of a page that begins with the library's folder."""
    found = re.search(r"```\n(hessianlens/\s.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, f"{page} has no tree"
    return found[1]


def folders() -> list[str]:
    """The folders right below the packages."""
    return [file.parent.name for package in PACKAGES for file in (ROOT / package).glob("*/__init__.py")]


def modules() -> list[str]:
    """The modules right below the packages."""
    return [file.name for package in PACKAGES for file in (ROOT / package).glob("*.py") if file.stem[:2] != "__"]


def test_the_contributors_tree_has_every_folder_and_module_of_the_packages() -> None:
    shown = tree(TREE)
    assert [name for name in folders() if f" {name}/ " not in shown] == []
    assert [name for name in modules() if f" {name}" not in shown] == []


def test_what_the_tree_names_is_there() -> None:
    named = re.findall(r"(?<![\w/.])([a-z_][\w/]*(?:\.py|/))(?=[\s,);:])", tree(TREE))
    assert len(named) > 15
    folders_of_code = (*PACKAGES, "tests", "benchmarks")
    paths = [file.relative_to(ROOT).as_posix() for part in folders_of_code for file in (ROOT / part).rglob("*.*")]
    assert [name for name in named if not any(f"/{name}" in f"/{path}" for path in paths)] == []


def test_the_readme_is_two_screens_and_its_links_work_anywhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 120
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith("https://")] == []
    here = re.findall(r"hessianlens/hessianlens/(?:main|(?:blob|tree)/main)/([\w./-]+)", text)
    assert here and [path for path in here if not (ROOT / path).exists()] == []
