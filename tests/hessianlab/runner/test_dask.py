"""A real Dask cluster of processes on this machine: same numbers, also when workers die."""

import json
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import pytest
from distributed import Client, Future, LocalCluster

from hessianlab.runner import CellsFailed, Plan, Progress, run
from hessianlab.store import open_store
from hessianlens.errors import InputError
from tests.hessianlab.runner.test_interruptions import ROOT, wait_until
from tests.hessianlab.runner.test_run import fingerprint
from tests.hessianlab.runner.toys import DIES, DIES_ONCE, SPECTRUM, ToyConfig

pytestmark = [
    pytest.mark.long,
    # Of Dask itself: a worker that was killed closes nothing.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@contextmanager
def cluster(workers: int, allowed_failures: int) -> Iterator[str]:
    """The address of a cluster that gives a cell up when more workers than allowed have ended on it."""
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": allowed_failures}),
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            silence_logs=logging.CRITICAL,
        ) as running,
    ):
        yield running.scheduler_address


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with cluster(workers=2, allowed_failures=1) as address:
        yield address


@pytest.fixture
def address(scheduler: str) -> str:
    """Of a cluster whose workers are all there again, whatever an earlier test did to them."""
    with Client(scheduler, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    return scheduler


def test_a_cluster_gives_the_numbers_of_a_serial_run_although_a_worker_dies(address: str, tmp_path: Path) -> None:
    config = ToyConfig(sizes=(60,), repeats=8, bad=3, folder=str(tmp_path))
    with open_store(tmp_path / "cells.sqlite") as store:
        (result,) = run([Plan(DIES_ONCE, config)], store, backend="dask", address=address)
    assert (tmp_path / "60-3").exists()  # its worker was killed
    assert fingerprint(result) == fingerprint(DIES_ONCE.run(config))


def test_a_cell_that_ends_every_worker_is_given_up_and_the_others_go_on(address: str, tmp_path: Path) -> None:
    with open_store(tmp_path / "cells.sqlite") as store:
        with pytest.raises(CellsFailed) as caught:
            run([Plan(DIES, ToyConfig(sizes=(20,), repeats=4, bad=1))], store, backend="dask", address=address)
        (failure,) = caught.value.failures
        assert failure.parameters["repeat"] == 1 and "KilledWorker" in failure.message
        assert store.query("SELECT count(*) FROM cells") == [(3,)]


def test_an_answer_that_is_lost_with_its_worker_is_measured_again(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch, lost = Future.result, []

    def fetch_or_lose(future: Future, timeout: float | None = None) -> object:
        if not lost:
            lost.append(future.key)
            raise TimeoutError("the worker is gone")
        return fetch(future, timeout=timeout)

    monkeypatch.setattr(Future, "result", fetch_or_lose)
    config = ToyConfig(sizes=(20,), repeats=4)
    with open_store(tmp_path / "cells.sqlite") as store:
        (result,) = run([Plan(SPECTRUM, config)], store, backend="dask", address=address)
    assert lost and fingerprint(result) == fingerprint(SPECTRUM.run(config))


def test_cells_that_waited_on_a_worker_which_ended_are_not_given_up(tmp_path: Path) -> None:
    """One worker and no patience: Dask gives up whatever waited beside the guilty cell."""
    with cluster(workers=1, allowed_failures=0) as scheduler, open_store(tmp_path / "cells.sqlite") as store:
        with pytest.raises(CellsFailed) as caught:
            run([Plan(DIES, ToyConfig(sizes=(20,), repeats=4, bad=1))], store, backend="dask", address=scheduler)
        (failure,) = caught.value.failures
        assert failure.parameters["repeat"] == 1
        assert store.query("SELECT count(*) FROM cells") == [(3,)]


def test_workers_with_several_threads_are_refused(tmp_path: Path) -> None:
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        open_store(tmp_path / "cells.sqlite") as store,
        pytest.raises(InputError, match=r"have \[2\] threads, expected 1 each"),
    ):
        run([Plan(SPECTRUM, ToyConfig())], store, backend="dask", address=cluster.scheduler_address)


def test_no_scheduler_and_no_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hessianlab.runner.dask._CONNECT_SECONDS", 0.2)
    with open_store(tmp_path / "cells.sqlite") as store:
        with pytest.raises(InputError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9'"):
            run([Plan(SPECTRUM, ToyConfig())], store, backend="dask", address="tcp://127.0.0.1:9")
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(InputError, match=r"pip install 'hessianlens\[cluster\]'"):
            run([Plan(SPECTRUM, ToyConfig())], store, backend="dask", address="tcp://127.0.0.1:9")


@contextmanager
def separate_cluster(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A scheduler and a worker as processes of their own: the address, and the scheduler."""
    written = tmp_path / "scheduler.json"
    common = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    own = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(written)]
    scheduler = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_scheduler", *own], **common)
    own = ["--nthreads", "1", "--no-dashboard", "--death-timeout", "20", "--scheduler-file", str(written)]
    worker = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_worker", *own], **common)
    try:
        wait_until(lambda: written.exists() and bool(written.read_text()))
        address = json.loads(written.read_text())["address"]
        with Client(address, set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
        yield address, scheduler
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_scheduler_that_is_gone_ends_the_run(sent: signal.Signals, tmp_path: Path, monkeypatch) -> None:
    """Killed, or stopped, as behind a network that has gone: what is measured is kept, and nobody waits forever."""
    config = ToyConfig(sizes=(20,), repeats=60, seconds=0.2)
    with separate_cluster(tmp_path) as (address, scheduler), open_store(tmp_path / "cells.sqlite") as store:

        def lose(progress: Progress) -> None:
            if progress.tallies[0].new == 3:
                monkeypatch.setattr("hessianlab.runner.dask._REPLY_TIMEOUT_SECONDS", 2.0)
                scheduler.send_signal(sent)

        began = time.monotonic()
        with pytest.raises(InputError, match=r"no longer answers .*; what was measured so far is kept"):
            run([Plan(SPECTRUM, config)], store, backend="dask", address=address, on_progress=lose)
        assert time.monotonic() - began < 60
        scheduler.send_signal(signal.SIGCONT)
        assert 3 <= store.query("SELECT count(*) FROM cells")[0][0] < 60
        assert store.query("SELECT count(*) FROM leases") == [(0,)]
