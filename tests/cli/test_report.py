"""`hessianlens report`, as a user meets it."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hessianlab.store import last_complete_runs, open_store
from hessianlens.cli import app

TINY = ("--set", "d_model=4", "--set", "repeats=2", "--set", "points=4", "--set", "layers=1", "--jobs", "1")


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["report", *arguments])


def test_a_page_from_a_run_and_the_same_page_from_the_store() -> None:
    first = call("fig8", *TINY, "--no-claims")
    assert first.exit_code == 0, first.output
    assert "Figure 8" in first.stdout and "report/index.html and report/labbook.html" in " ".join(first.stdout.split())
    assert 'href="labbook.html#exponents"' in Path("report/index.html").read_text(encoding="utf-8")
    page = Path("report/labbook.html").read_text(encoding="utf-8")
    place = '<article class="figure" id="fig8">'
    assert place in page and 'id="claims"' not in page
    read = call("--no-run", "--out", "again")
    assert read.exit_code == 0, read.output
    again = Path("again/labbook.html").read_text(encoding="utf-8")
    assert again[again.index(place) : again.index("<dl>", again.index(place))] in page
    with open_store("hessianlens.sqlite", readonly=True) as store:
        assert list(last_complete_runs(store)) == ["fig8"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--no-run", "--store", "missing.sqlite"], "missing.sqlite"),
        (["fig99"], "fig99"),
        (["fig8", "--preset", "huge"], "huge"),
        (["fig8", "--set", "colour=red"], "colour"),
        (["fig8", "--reference", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_bad_input_ends_with_one_line(arguments: list[str], told: str) -> None:
    answer = call(*arguments)
    assert answer.exit_code == 2 and told in answer.output and "Traceback" not in answer.output


def test_an_unwritable_directory_is_refused_before_the_work() -> None:
    Path("taken").write_text("a file")
    answer = call("fig8", *TINY, "--out", "taken")
    assert answer.exit_code == 2 and "taken" in answer.output and not Path("hessianlens.sqlite").exists()
