"""Where cells run: processes of this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hessianlens.errors import check_choice, expect
from hessianlens.lab.runner.work import Answer, Order


@dataclass(frozen=True)
class Workers:
    """Workers that are ready.

    Attributes:
        count: How many cells run at a time.
        answers: Answers orders, each once, as they come in; closing it calls off the rest.
    """

    count: int
    answers: Callable[[Sequence[Order]], Generator[Answer, None, None]]


BACKENDS = ("local", "dask", "ray")


def open_workers(backend: str, jobs: int, address: str | None) -> AbstractContextManager[Workers]:
    """Workers for as long as the context lasts.

    Args:
        backend: "local" for processes of this machine, "dask" or "ray" for a cluster.
        jobs: Processes, for "local"; a cluster brings its own.
        address: Of the cluster's scheduler.
    """
    check_workers(backend, jobs, address)
    if backend == "local":
        from hessianlens.lab.runner.local import local_workers

        return local_workers(jobs)
    if backend == "dask":
        from hessianlens.lab.runner.dask import dask_workers

        return dask_workers(str(address))
    from hessianlens.lab.runner.ray import ray_workers

    return ray_workers(str(address))


def check_workers(backend: str, jobs: int, address: str | None) -> None:
    """Workers can be asked for like this; whether there are any is another question."""
    check_choice("backend", backend, BACKENDS)
    if backend == "local":
        expect(address is None, f"address: got {address!r}, expected none; only dask and ray have one (--backend).")
        expect(jobs >= 1, f"jobs: got {jobs}, expected at least 1.")
    else:
        wanted = f"expected that of the {backend} scheduler, e.g. tcp://host:8786"
        expect(address is not None, f"address: got none, {wanted}.")
