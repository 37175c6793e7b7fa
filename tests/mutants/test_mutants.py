"""Mutants follow the code: every snippet is found exactly once, and what killed it is a file of tests that is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.mutants.running import PACKAGES

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = [file.read_text(encoding="utf-8") for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
KILLS = json.loads((ROOT / "tests/mutants/kills.json").read_text(encoding="utf-8"))


@pytest.mark.every_case
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_snippet_occurs_once(mutant: Mutant) -> None:
    assert sum(text.count(mutant.code) for text in SOURCES) == 1
    assert mutant.code != mutant.wrong


def test_every_mutant_is_killed_by_tests_that_exist() -> None:
    assert set(KILLS) == {mutant.name for mutant in MUTANTS}
    killers = {kill["killed by"] for kill in KILLS.values()}
    assert None not in killers
    assert [file for file in killers if not (ROOT / file.partition("::")[0]).exists()] == []
