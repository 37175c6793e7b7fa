"""Processes of this machine, through joblib."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import joblib
import psutil
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

from hessianlens.lab.runner.work import Answer, Order, measure_cell
from hessianlens.lab.runner.workers import Workers

_WATCH_SECONDS = 1.0
_ATTEMPTS = 2


@contextmanager
def local_workers(jobs: int) -> Iterator[Workers]:
    """One process: this one. More: others, which end with the context, however it ends."""
    if jobs == 1:
        yield Workers(1, lambda orders: (measure_cell(order) for order in orders))
        return
    try:
        with warnings.catch_warnings():
            # An interrupted user knows that tasks were cancelled.
            warnings.filterwarnings("ignore", r".*tasks? which were still being processed", UserWarning)
            # joblib renews a process that has grown; nothing is lost.
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)
            yield Workers(jobs, lambda orders: _answers(orders, jobs))
    finally:
        get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _answers(orders: Sequence[Order], jobs: int) -> Generator[Answer, None, None]:
    """Answers from all processes at once; after a process was killed, what it may have been doing is tried alone.

    The system kills a process that takes too much memory, and nobody tells which cell it was working on.
    """
    left = {order[0]: order for order in orders}
    suspects: dict[str, Order] = {}
    while left:
        begun: set[str] = set()
        try:
            for answer in _parallel(list(left.values()), jobs, begun):
                del left[answer.key]
                yield answer
        except TerminatedWorkerError:
            suspects |= {key: left.pop(key) for key in list(left) if key in begun}
    for order in suspects.values():
        yield _alone(order, jobs)


def _alone(order: Order, jobs: int) -> Answer:
    """A cell with nothing beside it; given up if that ends its process every time."""
    for _ in range(_ATTEMPTS):
        try:
            (answer,) = _parallel([order], jobs, set())
            return answer
        except TerminatedWorkerError:
            continue
    return Answer(order[0], None, "the process that measured it was killed, probably for lack of memory")


def _parallel(orders: Sequence[Order], jobs: int, begun: set[str]) -> Generator[Answer, None, None]:
    """Answers as they come in; `begun` takes the keys of the orders that were handed out."""

    def hand_out() -> Iterator[object]:
        for order in orders:
            begun.add(order[0])
            yield joblib.delayed(_measure_in_child)(order, os.getpid())

    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1):
        # One cell a message, so that each is kept as soon as it is done.
        parallel = joblib.Parallel(batch_size=1, return_as="generator_unordered", max_nbytes=None)
        yield from parallel(hand_out())


def _measure_in_child(order: Order, parent: int) -> Answer:
    _end_with(parent)
    return measure_cell(order)


@lru_cache
def _end_with(parent: int) -> None:
    """Watch the parent from a thread: when it is killed, nobody else tells this process to stop.

    Ctrl-C reaches every process of a terminal; the parent answers it and ends this one.
    """
    if parent != os.getpid():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent and psutil.pid_exists(parent):
        time.sleep(_WATCH_SECONDS)
    os._exit(1)
