"""Workers and what they are given: one cell to measure, one answer."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.experiments.registry import registered, registry_of
from hessianlab.results import FinishedCell, Parameters
from hessianlab.store import Code, check_storable, code_of
from hessianlens.errors import InputError, check_choice, expect

Order = tuple[str, "str | Experiment[Any]", dict[str, Any], Code]
"""What travels to a worker: the key of the cell, its experiment, its parameters, and the code to measure it with."""


@dataclass(frozen=True, eq=False)
class CellAnswer:
    """What comes back: the cell, or why there is none.

    Attributes:
        key: Of the cell.
        cell: None if it failed.
        message: Of the failure; empty if there was none.
        other_code: Whether the worker has other code than the run; nothing it measures could be used.
    """

    key: str
    cell: FinishedCell | None
    message: str = ""
    other_code: bool = False


def order(key: str, experiment: Experiment[Any], parameters: Parameters, code: Code) -> Order:
    """An order for one cell. A registered experiment travels as its name, any other as itself."""
    registry = registry_of(experiment.name)
    registered = registry is not None and registry[experiment.name] is experiment
    return key, experiment.name if registered else experiment, dict(parameters), code


def measure_cell(received: Order) -> CellAnswer:
    """Measure one cell. What goes wrong in it is an answer too: the other cells go on."""
    key, named, parameters, code = received
    try:
        experiment = registered(named) if isinstance(named, str) else named
        here = code_of(experiment.measure)
        if here != code:
            return CellAnswer(key, None, f"a worker has other code ({here}) than the run began with ({code})", True)
        cell = experiment.finish(parameters)
        check_storable(experiment.name, cell.measurement)
        return CellAnswer(key, cell)
    except Exception as error:
        return CellAnswer(key, None, _message(error))


def _message(error: Exception) -> str:
    """What went wrong and where, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, InputError) else f" ({last.filename}:{last.lineno})"
    return " ".join(f"{type(error).__name__}: {error}".split()) + where


@dataclass(frozen=True)
class Workers:
    """Workers that are ready.

    Attributes:
        count: How many cells run at a time.
        answers: Answers orders, each once, as they come in; closing it calls off the rest. An order is taken only when
            a worker is about to be free for it, so that other runs can take the ones that are left.
    """

    count: int
    answers: Callable[[Iterable[Order]], Generator[CellAnswer, None, None]]


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
