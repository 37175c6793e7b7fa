"""The trees of the documentation are those of the repository: no folder or module is missing, none is gone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("hessianlens", "hessianlab")


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
    shown = tree("docs/contributing/development.md")
    assert [name for name in folders() if f" {name}/ " not in shown] == []
    assert [name for name in modules() if f" {name}" not in shown] == []


@pytest.mark.parametrize("page", ["README.md", "docs/contributing/development.md"])
def test_what_a_tree_names_is_there(page: str) -> None:
    named = re.findall(r"(?<![\w/.])([a-z_][\w/]*(?:\.py|/))(?=[\s,);:])", tree(page))
    assert len(named) > 15
    folders_of_code = (*PACKAGES, "tests", "benchmarks")
    paths = [file.relative_to(ROOT).as_posix() for part in folders_of_code for file in (ROOT / part).rglob("*.*")]
    assert [name for name in named if not any(f"/{name}" in f"/{path}" for path in paths)] == []


def test_the_short_tree_has_every_folder_of_the_library() -> None:
    named = tree("README.md")
    assert [
        file.parent.name
        for file in (ROOT / "hessianlens").glob("*/__init__.py")
        if f" {file.parent.name}/" not in named
    ] == []
