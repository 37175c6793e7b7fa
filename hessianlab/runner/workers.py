"""Where cells run: processes of this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hessianlab.runner.work import Answer, Order
from hessianlens.errors import check_choice, expect


@dataclass(frozen=True)
class Workers:
    """Workers that are ready.

    Attributes:
        count: How many cells run at a time.
        answers: Answers orders, each once, as they come in; closing it calls off the rest. An order is taken only when
            a worker is about to be free for it, so that other runs can take the ones that are left.
    """

    count: int
    answers: Callable[[Iterable[Order]], Generator[Answer, None, None]]


BACKENDS = ("local", "dask")


def open_workers(backend: str, jobs: int, address: str | None) -> AbstractContextManager[Workers]:
    """Workers for as long as the context lasts.

    Args:
        backend: "local" for processes of this machine, "dask" for a cluster.
        jobs: Processes, for "local"; a cluster brings its own.
        address: Of the cluster's scheduler.
    """
    check_workers(backend, jobs, address)
    if backend == "local":
        from hessianlab.runner.local import local_workers

        return local_workers(jobs)
    from hessianlab.runner.dask import dask_workers

    return dask_workers(str(address))


def check_workers(backend: str, jobs: int, address: str | None) -> None:
    """Workers can be asked for like this; whether there are any is another question."""
    check_choice("backend", backend, BACKENDS)
    if backend == "local":
        expect(address is None, f"address: got {address!r}, expected none; only dask has one (--backend).")
        expect(jobs >= 1, f"jobs: got {jobs}, expected at least 1.")
    else:
        wanted = f"expected that of the {backend} scheduler, e.g. tcp://host:8786"
        expect(address is not None, f"address: got none, {wanted}.")
