"""Processes of this machine: each is given one cell at a time, so that it is known which cell ended one."""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import hessianlens
from hessianlab.runner.child import START, beginning, receive, send
from hessianlab.runner.workers import CellAnswer, Order, Workers, measure_cell
from hessianlens.errors import Refusal

_ATTEMPTS = 2
"""How often a cell that ended its process is tried again, with nothing beside it."""

_PACKAGES = {
    "hessianlens": str(Path(hessianlens.__file__).resolve().parent),
    "hessianlab": str(Path(__file__).resolve().parents[1]),
}

_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


def cores() -> int:
    """How many processes fill this machine, or the part of it that this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, _container_cores()))


def _container_cores() -> int:
    """Whole cores' worth of time that a container is given."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        return -(-int(quota) // int(period))
    except (OSError, ValueError):  # there is no container, or it is given all there is
        return os.cpu_count() or 1


@contextmanager
def local_workers(jobs: int) -> Iterator[Workers]:
    """One process: this one. More: others, which end with the context, however it ends."""
    if jobs == 1:
        yield Workers(1, lambda orders: (measure_cell(order) for order in orders))
        return
    with closing(_WorkerProcesses(jobs)) as crew:
        yield Workers(jobs, lambda orders: _answers(orders, crew))


def _answers(orders: Iterable[Order], crew: _WorkerProcesses) -> Generator[CellAnswer, None, None]:
    """Answers from all processes at once; a cell that ended its process is tried again when the others are done.

    The system kills a process that takes too much memory, which may be too much only beside others.
    """
    ended: list[Order] = []
    for order, answer in crew.outcomes(orders):
        if isinstance(answer, CellAnswer):
            yield answer
        else:
            ended.append(order)
    for order in ended:
        yield _alone(order, crew)


def _alone(order: Order, crew: _WorkerProcesses) -> CellAnswer:
    """A cell with nothing beside it; given up if that ends its process every time."""
    for _ in range(_ATTEMPTS):
        ((_, answer),) = crew.outcomes([order])
        if isinstance(answer, CellAnswer):
            return answer
    return CellAnswer(order[0], None, f"the process that measured it {answer}")


class _WorkerProcesses:
    """Processes that are started when there is something to do for them, and replaced when they end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._idle: list[_Process] = []
        self._busy: dict[_Process, Order] = {}
        self._heard: queue.Queue[tuple[_Process, bytes | None]] = queue.Queue()

    def outcomes(self, orders: Iterable[Order]) -> Generator[tuple[Order, CellAnswer | Refusal], None, None]:
        """Every order with its answer, or with how its process ended; an order is taken when a process is free."""
        waiting, more = iter(orders), True
        try:
            while more or self._busy:
                while more and len(self._busy) < self._size:
                    order = next(waiting, None)
                    more = order is not None
                    if order is not None:
                        self._begin(order)
                if self._busy:
                    yield self._next_outcome()
        finally:
            self.close() if self._busy else None  # called off: nobody wants their answers

    def close(self) -> None:
        """End every process now."""
        for process in (*self._idle, *self._busy):
            process.end()
        self._idle, self._busy = [], {}

    def _begin(self, order: Order) -> None:
        process = self._idle.pop() if self._idle else _Process(self._heard)
        self._busy[process] = order
        process.give(order)

    def _next_outcome(self) -> tuple[Order, CellAnswer | Refusal]:
        while True:
            process, content = self._heard.get()
            if process in self._busy:
                order = self._busy.pop(process)
                if content is None:
                    return order, Refusal(process.end())
                self._idle.append(process)
                return order, pickle.loads(content)
            if process in self._idle:  # it ended while it had nothing to do
                self._idle.remove(process)
                process.end()


class _Process:
    """One process, and the thread that listens to it."""

    def __init__(self, heard: queue.Queue[tuple[_Process, bytes | None]]) -> None:
        # A session of its own: Ctrl-C in a terminal is for the parent, which ends this process when it likes.
        group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)  # what Windows has instead
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-c", START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ONE_THREAD},
            start_new_session=True,
            creationflags=group,
        )
        assert self._popen.stdin is not None
        with suppress(OSError):
            self._popen.stdin.write(beginning(_PACKAGES))
        self._listener = threading.Thread(target=self._listen, args=(heard,), daemon=True)
        self._listener.start()

    def give(self, order: Order) -> None:
        """One order; whether the process is still there is heard elsewhere."""
        assert self._popen.stdin is not None
        with suppress(OSError):
            send(self._popen.stdin, order)

    def end(self) -> str:
        """Kill it, wait for it, and tell how it ended by itself if it had."""
        code = self._popen.poll()
        if code is None:
            with suppress(subprocess.TimeoutExpired):  # the pipe may be closed a moment before the process is gone
                code = self._popen.wait(0.0 if self._listener.is_alive() else 5.0)
        self._popen.kill()
        self._popen.wait()
        self._listener.join()
        for stream in (self._popen.stdin, self._popen.stdout):
            with suppress(OSError):
                stream.close() if stream else None
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            return f"was killed ({name}{', probably for lack of memory' if name == 'SIGKILL' else ''})"
        return f"ended with exit code {code}"

    def _listen(self, heard: queue.Queue[tuple[_Process, bytes | None]]) -> None:
        assert self._popen.stdout is not None
        content: bytes | None = b""
        while content is not None:
            try:
                content = receive(self._popen.stdout)
            except (OSError, ValueError):
                content = None
            heard.put((self, content))
