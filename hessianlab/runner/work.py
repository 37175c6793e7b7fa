"""What a worker does: measure one cell, on one thread, with the very code the run began with."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.experiment import Experiment
from hessianlab.experiments.registry import registered, registry_of
from hessianlab.results import FinishedCell, Parameters
from hessianlab.store import Code, check_storable, code_of
from hessianlens.errors import InputError

Order = tuple[str, "str | Experiment[Any]", dict[str, Any], Code]
"""What travels to a worker: the key of the cell, its experiment, its parameters, and the code to measure it with."""


@dataclass(frozen=True, eq=False)
class Answer:
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


def measure_cell(received: Order) -> Answer:
    """Measure one cell. What goes wrong in it is an answer too: the other cells go on."""
    key, named, parameters, code = received
    try:
        experiment = registered(named) if isinstance(named, str) else named
        here = code_of(experiment.measure)
        if here != code:
            return Answer(key, None, f"a worker has other code ({here}) than the run began with ({code})", True)
        cell = experiment.finish(parameters)
        check_storable(experiment.name, cell.measurement)
        return Answer(key, cell)
    except Exception as error:
        return Answer(key, None, _message(error))


def _message(error: Exception) -> str:
    """What went wrong and where, in one line."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, InputError) else f" ({last.filename}:{last.lineno})"
    return " ".join(f"{type(error).__name__}: {error}".split()) + where
