"""Runs on one store share the work, and take over what a run that is gone had in hand."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from hessianlab.runner import Plan, Progress, run
from hessianlab.store import Store, open_store, taking_part
from tests.fuzz.kills import EXPERIMENT, Config, begin, kill_runs
from tests.hessianlab.runner.toys import RAISES, SPECTRUM, ToyConfig

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "cells.sqlite") as store:
        yield store


def test_a_cell_is_in_one_hand_only(store: Store) -> None:
    with open_store(store.path) as second, taking_part(store) as one, taking_part(second) as two:
        assert one.take(["a", "b"]).key == "a"
        other = two.take(["a", "b"])
        assert (other.key, other.elsewhere) == ("b", 1)
        assert one.take(["a", "b"]).key is None
        one.give_back("a")
        assert two.take(["a"]).key == "a"
    assert store.query("SELECT count(*) FROM leases") == store.query("SELECT count(*) FROM owners") == [(0,)]


OVER = {
    "gone": {"pid": 2**22 + 1},
    "another process has its number": {"born": 1.0},
    "silent, here": {"seen": 1.0},
    "silent, elsewhere": {"host": "elsewhere", "seen": 1.0},
    "damaged": {"pid": "x"},
}


@pytest.mark.expensive
@pytest.mark.parametrize("changed", OVER.values(), ids=OVER)
def test_the_cells_of_a_run_that_is_over_are_taken_over(store: Store, changed: dict) -> None:
    with open_store(store.path) as second, taking_part(second) as gone, taking_part(store) as leases:
        assert gone.take(["a"]).key == "a"
        assert leases.take(["a"]).key is None
        for name, value in changed.items():
            store.query(f"UPDATE owners SET {name} = ? WHERE id = ?", (value, gone.owner))
        time.sleep(0.6)
        assert leases.take(["a"]).key == "a"
        assert gone.take(["a", "b"]).key == "b"  # it is not: it was only believed to be


def test_a_run_elsewhere_that_still_speaks_is_left_alone(store: Store) -> None:
    with open_store(store.path) as second, taking_part(second) as other, taking_part(store) as leases:
        other.take(["a"])
        store.query("UPDATE owners SET host = 'elsewhere', pid = 1, born = 1.0 WHERE id = ?", (other.owner,))
        time.sleep(0.6)
        assert leases.take(["a"]).key is None


@pytest.mark.long
def test_two_runs_do_everything_once(tmp_path: Path) -> None:
    path, config = tmp_path / "cells.sqlite", Config(60)
    states: list[tuple[int, int]] = []

    def note(progress: Progress) -> None:
        states.append((progress.tallies[0].stored, progress.tallies[0].new))

    with open_store(path) as store:
        child = begin(path, config)
        run([Plan(EXPERIMENT, config)], store, on_progress=note)
        assert os.waitpid(child, 0)[1] == 0
        stored, new = states[-1]
        assert stored + new == 60 and new > 0
        # What the other run has measured was not measured here: 60 cells were kept, each by one of the two.
        assert store.query("SELECT count(*) FROM cells") == [(60,)]
        if states[0] == (0, 0):
            assert stored > 0


@pytest.mark.long
def test_what_a_killed_run_had_in_hand_is_done_at_once(tmp_path: Path) -> None:
    path = tmp_path / "cells.sqlite"
    config = Config(400)
    child = begin(path, config)
    try:
        time.sleep(0.4)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    began = time.monotonic()
    with open_store(path) as store:
        run([Plan(EXPERIMENT, config)], store)
        assert store.query("SELECT count(*) FROM cells") == [(400,)]
    assert time.monotonic() - began < 50  # not a minute of silence


def test_a_cell_that_fails_is_given_back(store: Store) -> None:
    with pytest.raises(RuntimeError):
        run([Plan(RAISES, ToyConfig(sizes=(5,), repeats=2, bad=1))], store)
    assert store.query("SELECT count(*) FROM leases") == [(0,)]
    run([Plan(SPECTRUM, ToyConfig(sizes=(5,), repeats=1))], store)


@pytest.mark.long
def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """A few of them; `python -m tests.fuzz.kills` makes two hundred."""
    outcome = kill_runs(12, 1, tmp_path, Config(60))
    assert outcome.kills >= 12
    assert (outcome.lost, outcome.differ, outcome.refused) == (0, 0, 0)
