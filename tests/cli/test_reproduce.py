"""`hessianlens reproduce` and `hessianlens export`, as a user meets them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hessianlab.experiments.registry import EXPERIMENTS, Registry, registry_of
from hessianlab.runner.plan import typical_seconds
from hessianlab.store import Code, open_store
from hessianlens.cli import app
from tests.hessianlab.runner.toys import RAISES, SPECTRUM

ROOT = Path(__file__).parents[2]
SMALL = ("--set", "sizes=20", "--set", "repeats=2", "--jobs", "1")


TOYS = {"spectrum": SPECTRUM, "raises": RAISES}


class Toys(Registry):
    def __getitem__(self, name: str) -> Any:
        return TOYS[name] if name in TOYS else super().__getitem__(name)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two toy experiments instead of the published ones, in an empty working directory."""
    monkeypatch.setattr("hessianlab.experiments.registry.EXPERIMENTS", Toys("", dict.fromkeys(TOYS, "")))
    monkeypatch.setattr(
        "hessianlab.presentations.registry_of", lambda name: None if name in TOYS else registry_of(name)
    )
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def test_a_run_and_the_same_run_again() -> None:
    first = call("reproduce", "spectrum", *SMALL)
    assert first.exit_code == 0, first.output
    assert first.stdout.splitlines()[1].split()[:6] == ["spectrum", "custom", "2", "2", "0", "0"]
    again = call("reproduce", "spectrum", *SMALL)
    assert again.stdout.splitlines()[1].split()[:6] == ["spectrum", "custom", "2", "0", "2", "0"]
    assert Path("hessianlens.sqlite").is_file()


def test_a_run_ends_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlab.experiments.registry.EXPERIMENTS", EXPERIMENTS)
    small = ("--set", "d_model=4", "--set", "d_ks=1,2", "--set", "lengths=5", "--set", "repeats=1", "--jobs", "1")
    done = call("reproduce", "rank_fraction", *small)
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout[done.stdout.index("What was found") :].split())
    assert "The measured rank equals the exact formula in 2 of 2 cases" in words
    assert max(map(len, done.stdout.splitlines())) <= 80, "words wrap"


def test_json_says_what_was_done() -> None:
    outcome = json.loads(call("reproduce", *SMALL, "--store", "own.sqlite", "--json").stdout)
    assert [(e["experiment"], e["new"], e["from_store"]) for e in outcome["experiments"]] == [
        ("spectrum", 2, 0),
        ("raises", 2, 0),
    ]
    assert outcome["experiments"][0]["config"]["sizes"] == [20] and outcome["store"] == "own.sqlite"
    assert outcome["failures"] == [] and outcome["exponents"] == []


def test_failed_cells_are_a_finding() -> None:
    done = call("reproduce", "raises", *SMALL, "--set", "bad=1")
    assert done.exit_code == 1
    assert "failed: raises (size=20, repeat=1" in done.stderr and "ZeroDivisionError: this one is bad" in done.stderr
    assert "1 cell failed; all others are kept in hessianlens.sqlite." in done.stderr
    assert done.stdout.splitlines()[1].split()[:6] == ["raises", "custom", "2", "1", "0", "1"]


def test_dry_run_measures_nothing() -> None:
    done = call("reproduce", "spectrum", *SMALL, "--dry-run")
    assert done.exit_code == 0 and done.stdout.splitlines()[1].split()[:5] == ["spectrum", "custom", "2", "0", "2"]
    assert not Path("hessianlens.sqlite").exists()
    call("reproduce", "spectrum", *SMALL)
    done = call("reproduce", "spectrum", "--set", "sizes=20", "--set", "repeats=3", "--dry-run")
    assert done.stdout.splitlines()[1].split()[:5] == ["spectrum", "custom", "3", "2", "1"]


def test_list_tells_cells_and_times() -> None:
    assert "quick: 6 cells, not known; paper: 15 cells, not known" in call("reproduce", "--list").stdout
    call("reproduce", "spectrum", "--jobs", "1")
    entries = {e["experiment"]: e for e in json.loads(call("reproduce", "--list", "--json").stdout)}
    quick = entries["spectrum"]["presets"]["quick"]
    assert quick["cells"] == 6 and quick["seconds"] > 0
    assert entries["raises"]["presets"]["quick"]["seconds"] is None


def test_typical_times_are_known_before_anything_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlab.experiments.registry.EXPERIMENTS", EXPERIMENTS)
    listed = [e for word in ("reproduce", "study") for e in json.loads(call(word, "--list", "--json").stdout)]
    entries = {e["experiment"]: e["presets"] for e in listed}
    assert set(typical_seconds()) <= {*entries, "claims"}, "of experiments that exist"
    for name, presets in typical_seconds().items():
        for preset, seconds in presets.items() if name in entries else ():
            assert entries[name][preset]["seconds"] == seconds > 0
    told = call("reproduce", "fig8", "--dry-run").stdout
    assert "not known" not in told
    assert max(map(len, call("reproduce", "--list").stdout.splitlines())) <= 80, "words wrap"


def test_cells_of_other_code_are_told_and_deleted_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        for module in ("plan", "workers"):
            patched.setattr(f"hessianlab.runner.{module}.code_of", lambda measure: Code("0" * 64, "torch 1"))
        call("reproduce", "spectrum", *SMALL)
    told = call("reproduce", "spectrum", *SMALL)
    assert "2 cells of other code (digest 000000000000, " in told.stderr
    assert told.stdout.splitlines()[1].split()[:6] == ["spectrum", "custom", "2", "2", "0", "0"]
    pruned = call("reproduce", "spectrum", *SMALL, "--prune")
    assert "2 cells of other code deleted" in pruned.stderr and "are not used" not in pruned.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fig99",), "experiment: got 'fig99', expected one of 'spectrum', 'raises'"),
        (("--preset", "huge"), "preset: got 'huge'"),
        (("--set", "width=3"), "got 'width', which no chosen experiment has"),
        (("--set", "repeats=x"), "repeats: got 'x', expected a whole number"),
        (("--jobs", "0"), "jobs: got 0"),
        (("--backend", "dask"), "address: got none"),
        (("--store", "missing/cells.sqlite"), "make it first"),
    ],
)
def test_bad_input(arguments: tuple[str, ...], message: str) -> None:
    done = call("reproduce", *arguments)
    assert done.exit_code == 2 and message in done.stderr, done.output
    assert "Traceback" not in done.output


def test_a_place_for_figures_is_checked_before_any_work() -> None:
    Path("file").write_text("")
    done = call("reproduce", "spectrum", *SMALL, "--figures", "file")
    assert done.exit_code == 2 and "figures: cannot write to file: file is a file" in done.stderr
    assert not Path("hessianlens.sqlite").exists()


def test_the_registry_knows_every_experiment_by_its_own_name() -> None:
    assert [EXPERIMENTS[name].name for name in EXPERIMENTS] == list(EXPERIMENTS)


def test_figures_of_a_published_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlab.experiments.registry.EXPERIMENTS", EXPERIMENTS)
    small = ("--set", "d_model=4", "--set", "d_ks=1,2", "--set", "lengths=5", "--set", "repeats=2", "--jobs", "1")
    done = call("reproduce", "rank_fraction", *small, "--figures", "figures", "--json")
    assert done.exit_code == 0, done.output
    (entry,) = json.loads(done.stdout)["experiments"]
    assert {Path(file).suffix for file in entry["figures"]} == {".png", ".svg", ".pdf"}
    assert all(Path(file).stat().st_size > 0 for file in entry["figures"])


def test_export_writes_the_last_run() -> None:
    call("reproduce", "spectrum", *SMALL)
    done = call("export", "--out", "tables")
    assert done.exit_code == 0
    assert sorted(done.stdout.split()) == [f"tables/spectrum.{e}" for e in ("csv", "npz", "provenance.json")]
    assert len(Path("tables/spectrum.csv").read_text().splitlines()) == 5
    assert call("export", "spectrum", "--format", "json", "--out", "tables").exit_code == 0
    assert len(json.loads(Path("tables/spectrum.json").read_text())["rows"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--store", "none.sqlite"), "does not exist"),
        (("fig99",), "experiment: got 'fig99', expected one of 'spectrum'"),
        (("raises",), "has no complete run in hessianlens.sqlite; `hessianlens reproduce raises` makes one"),
        (("claims",), "`hessianlens claims` makes one"),
        (("--format", "xlsx"), "format: got 'xlsx'"),
    ],
)
def test_export_of_what_is_not_there(arguments: tuple[str, ...], message: str) -> None:
    call("reproduce", "spectrum", *SMALL)
    done = call("export", *arguments)
    assert done.exit_code == 2 and message in done.stderr


def test_export_of_an_empty_store() -> None:
    open_store("hessianlens.sqlite").close()
    done = call("export")
    assert done.exit_code == 2 and "has no complete run" in done.stderr


@pytest.mark.long
def test_ctrl_c_keeps_what_is_finished_and_says_so(tmp_path: Path) -> None:
    """A real experiment in a real process group, interrupted as a terminal does it."""
    path = tmp_path / "cells.sqlite"
    settings = ("--set", "d_model=8", "--set", "sequences=2", "--set", "repeats=300")
    command = [
        sys.executable,
        "-c",
        "from hessianlens.cli import app; app()",
        "reproduce",
        "fig3a",
        *settings,
        "--jobs",
        "2",
    ]
    child = subprocess.Popen(
        [*command, "--store", str(path)],
        cwd=ROOT,
        start_new_session=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + 60
        while _stored(path) < 3:
            assert time.monotonic() < end and child.poll() is None
            time.sleep(0.05)
        os.killpg(child.pid, signal.SIGINT)
        _, told = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130
    kept = _stored(path)
    assert f"interrupted; {kept} of 4800 cells are kept in {path}; run the same command again to continue." in told
    assert "Traceback" not in told


def _stored(path: Path) -> int:
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with open_store(path, readonly=True) as store:
        return int(store.query("SELECT count(*) FROM cells")[0][0])
