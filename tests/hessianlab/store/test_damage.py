"""A store that is not as it was written is refused with a reason: never a traceback, never other or fewer numbers."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hessianlab.runner import CellsFailed, Plan, run
from hessianlab.store import last_complete_runs, load_run, open_store
from hessianlens.cli import app
from hessianlens.errors import InputError
from tests.hessianlab.runner.test_run import fingerprint
from tests.hessianlab.runner.toys import RAISES, SPECTRUM, ToyConfig

COPIES = 50


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of several pages with complete runs of two experiments, and one with a failure."""
    path = tmp_path_factory.mktemp("sound") / "cells.sqlite"
    with open_store(path) as store:
        run([Plan(SPECTRUM, ToyConfig(sizes=(10, 60), repeats=6)), Plan(RAISES, ToyConfig(sizes=(5,)))], store)
        with pytest.raises(CellsFailed):
            run([Plan(RAISES, ToyConfig(sizes=(5,), repeats=2, bad=1))], store)
    return path


def exported(path: Path, folder: Path) -> tuple[int, dict[str, bytes], str]:
    done = CliRunner().invoke(app, ["export", "--store", str(path), "--out", str(folder), "--format", "csv"])
    files = {file.name: file.read_bytes() for file in folder.iterdir()} if folder.exists() else {}
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    # An archive says when it was written; what is in it is compared elsewhere.
    return done.exit_code, {name: content for name, content in files.items() if name.endswith("csv")}, done.output


@pytest.fixture(scope="module")
def expected(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    code, found, _ = exported(sound, tmp_path_factory.mktemp("expected") / "tables")
    assert code == 0 and len(found) == 2
    return found


@pytest.mark.parametrize("number", range(COPIES))
def test_flipped_bytes_give_the_same_numbers_or_a_reason(
    sound: Path, expected: dict[str, bytes], tmp_path: Path, number: int
) -> None:
    draw, content = random.Random(number), bytearray(sound.read_bytes())
    for _ in range(draw.choice((1, 1, 2, 8, 64))):
        content[draw.randrange(len(content))] ^= draw.randrange(1, 256)
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(content)
    code, found, said = exported(copy, tmp_path / "found")
    assert "Traceback" not in said
    if code == 0:
        assert found == expected
    else:
        assert code == 2 and said.startswith("hessianlens: store: ") and said.count("\n") == 1 and found == {}


def test_flipped_bytes_are_noticed_by_those_who_go_on_with_a_run(sound: Path, tmp_path: Path) -> None:
    """The same bytes, through the functions: whatever can be loaded is what was measured."""
    with open_store(sound, readonly=True) as store:
        expected = {name: fingerprint(load_run(store, found)) for name, found in last_complete_runs(store).items()}
    refused = 0
    for number in range(COPIES):
        draw, content = random.Random(1000 + number), bytearray(sound.read_bytes())
        content[draw.randrange(100, len(content))] ^= draw.randrange(1, 256)
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(content)
        try:
            with open_store(copy) as store:
                found = {name: fingerprint(load_run(store, one)) for name, one in last_complete_runs(store).items()}
        except InputError:
            refused += 1
        else:
            assert found == expected
    assert refused >= 5  # the others hit empty pages


DELETIONS = {
    "the end of a run's list": "DELETE FROM run_cells WHERE position > 2",
    "the middle of a run's list": "DELETE FROM run_cells WHERE position = 1",
    "a whole list": "DELETE FROM run_cells WHERE run = 1",
    "a cell and its place": "DELETE FROM run_cells WHERE cell = 3; DELETE FROM cells WHERE id = 3",
    "a cell": "DELETE FROM cells WHERE id = 3",
    "all cells": "DELETE FROM run_cells; DELETE FROM cells",
    "a run": "DELETE FROM runs WHERE id = 2; DELETE FROM run_cells WHERE run = 2",
    "a code": "DELETE FROM codes",
    "a provenance": "DELETE FROM provenances",
    "a failure": "DELETE FROM failures",
    "the seals": "DELETE FROM seals",
    "a table": "DROP TABLE run_cells",
}
CHANGES = {
    "the order of a list": "UPDATE run_cells SET position = -position WHERE position < 3",
    "a cell of a list": "UPDATE run_cells SET cell = 1 WHERE position = 4",
    "a configuration": "UPDATE runs SET config = replace(config, '60', '61')",
    "a preset": "UPDATE runs SET preset = 'paper'",
    "the name of a run": "UPDATE runs SET experiment = 'fig1' WHERE id = 1",
    "the end of a run": "UPDATE runs SET finished = NULL WHERE id = 2",
    "a provenance": "UPDATE provenances SET content = replace(content, 'cores', 'kores')",
    "a code": "UPDATE codes SET digest = 'f' || digest",
    "the parameters of a cell": "UPDATE cells SET parameters = replace(parameters, '60', '61')",
    "a kind of value": "UPDATE cells SET seconds = 'long'",
    "a key": "UPDATE cells SET key = 'k' || key WHERE id = 2",
    "a message": "UPDATE failures SET message = 'fine'",
    "no JSON": "UPDATE cells SET rows = '[{'; UPDATE runs SET config = x'00ff'",
}


@pytest.mark.parametrize("statements", [*DELETIONS.values(), *CHANGES.values()], ids=[*DELETIONS, *CHANGES])
def test_rows_that_are_gone_or_changed_are_noticed(sound: Path, tmp_path: Path, statements: str) -> None:
    copy = tmp_path / "copy.sqlite"
    copy.write_bytes(sound.read_bytes())
    with closing(sqlite3.connect(copy)) as foreign, foreign:
        foreign.executescript(statements)
    code, found, said = exported(copy, tmp_path / "found")
    assert code == 2 and found == {} and "Traceback" not in said
    assert "is not as it was written; the file is damaged" in said or "no such table" in said


def test_a_reader_undoes_what_a_killed_process_had_begun(tmp_path: Path) -> None:
    """A journal beside the file says that a change was begun; one who only reads may not undo it without help."""
    before, left = tmp_path / "before.sqlite", tmp_path / "left.sqlite"
    with open_store(before):
        pass
    writer = sqlite3.connect(before, isolation_level=None)
    kept = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("CREATE TABLE begun (what BLOB)")
    writer.executemany("INSERT INTO begun VALUES (?)", [(bytes(5000),)] * 50)
    journal = Path(f"{before}-journal")
    assert journal.stat().st_size
    shutil.copy(before, left)
    shutil.copy(journal, f"{left}-journal")
    writer.close()
    with open_store(left, readonly=True) as store:
        assert store.query("SELECT count(*) FROM sqlite_master") == [kept]
