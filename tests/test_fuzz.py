"""No public name answers with a traceback: a thousand calls with good and with bad arguments."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.recipes import RECIPES, public_names


def test_every_public_name_is_called() -> None:
    called = [recipe.target() for recipe in RECIPES]
    missing = [name for name, value in public_names() if callable(value) and not any(value is one for one in called)]
    assert missing == ["Batch"]  # the name of a type


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_works_before_it_is_spoiled(recipe) -> None:
    if recipe.arguments:
        recipe.target()(**{name: make() for name, make in recipe.arguments.items() if not name.isdigit()})


def test_a_thousand_calls() -> None:
    """In a process of their own: with a limit of memory, and without the checks of shapes that tests run with."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--calls", "1000", "--seed", "0"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "1000 calls, 0 failures" in run.stdout
