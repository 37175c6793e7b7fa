"""Whatever ends a run, finished cells are kept, no process stays behind, and the next run has the same numbers."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hessianlab.runner import Plan, Progress, run
from hessianlab.store import open_store
from tests.hessianlab.runner.child import CONFIG
from tests.hessianlab.runner.test_run import fingerprint
from tests.hessianlab.runner.toys import SPECTRUM

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def stored(path: Path) -> int:
    if not path.exists() or path.stat().st_size == 0:
        return 0
    with open_store(path, readonly=True) as store:
        return int(store.query("SELECT count(*) FROM cells")[0][0])


@pytest.mark.long
def test_a_killed_run_continues_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "cells.sqlite"
    command = [sys.executable, "-m", "tests.hessianlab.runner.child", str(path), "2"]
    child = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: stored(path) >= 3)
        family = psutil.Process(child.pid).children(recursive=True)
        assert len(family) >= 2
    finally:
        child.kill()
        child.wait(timeout=PATIENCE)
    assert child.returncode == -signal.SIGKILL
    wait_until(lambda: not any(process.is_running() for process in family))

    kept = stored(path)
    assert 3 <= kept < len(Plan(SPECTRUM, CONFIG).cells)
    states: list[Progress] = []
    with open_store(path) as store:
        (resumed,) = run([Plan(SPECTRUM, CONFIG)], store, on_progress=states.append)
    assert states[-1].tallies[0].stored == kept
    assert fingerprint(resumed) == fingerprint(SPECTRUM.run(CONFIG))
