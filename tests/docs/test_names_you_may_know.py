"""Every public name, argument and file of "You may know it as" is there."""

from __future__ import annotations

import inspect
import pydoc
import re
from operator import attrgetter
from pathlib import Path

import pytest

import hessianlens as hl

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/names-you-may-know.md").read_text(encoding="utf-8")
NAMES = sorted(
    set(re.findall(r"`hl\.([\w.]+)", PAGE)) | {f"operators.Operator.{m}" for m in re.findall(r"`op\.(\w+)", PAGE)}
)
FILES = re.findall(r"`([\w/]+\.py)`", PAGE)


def test_the_page_has_tables() -> None:
    assert len(NAMES) > 30 and len(FILES) > 35


@pytest.mark.every_case
@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_page_is_there_and_takes_the_arguments_it_is_shown_with(name: str) -> None:
    found = attrgetter(name)(hl)
    shown = re.findall(rf"`(?:hl\.{re.escape(name)}|op\.{name.rpartition('.')[2]})\(([^`]*)\)`", PAGE)
    arguments = {argument for call in shown for argument in re.findall(r"(\w+)=", call)}
    assert not arguments or arguments <= set(inspect.signature(found).parameters)


def test_what_the_page_imports_from_a_module_is_there() -> None:
    shown = re.findall(r"`hessianlens\.([\w.]+)`", PAGE)
    assert shown and [name for name in shown if pydoc.locate(f"hessianlens.{name}") is None] == []


def test_the_files_of_the_page_are_there() -> None:
    assert [file for file in FILES if not (ROOT / "hessianlens" / file).is_file()] == []


def test_the_page_is_found_from_both_indexes() -> None:
    assert "names-you-may-know\n" in (ROOT / "docs/reference/index.md").read_text(encoding="utf-8")
    assert "names-you-may-know.md" in (ROOT / "docs/how-to/index.md").read_text(encoding="utf-8")
