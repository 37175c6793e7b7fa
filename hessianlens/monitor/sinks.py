"""Where records go besides memory: files and the dashboards of others."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

from hessianlens.errors import check_path, check_that, needs_extra
from hessianlens.monitor.history import History
from hessianlens.monitor.record import Record
from hessianlens.monitor.store import RecordFile

Sink = Callable[[Record, History], None]
"""Is given a new record, and the history that now ends with it."""


def store_sink(file: RecordFile) -> Sink:
    """Into a file that survives the end of the process."""
    return lambda record, history: file.add(record)


def csv_sink(path: str | os.PathLike[str]) -> Sink:
    """Into a table that is written anew with every record, whole or not at all."""
    file = check_path("csv", path, "the name of a file")

    def write(record: Record, history: History) -> None:
        history.to_csv(file)

    return write


def tensorboard_sink(target: Any) -> Sink:
    """Into TensorBoard: a folder, or a writer that is there already."""
    if isinstance(target, (str, os.PathLike)):
        with needs_extra("watch", "tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        target = SummaryWriter(os.fspath(target))
    check_that(hasattr(target, "add_scalar"), "tensorboard", target, "a folder or a SummaryWriter")

    def write(record: Record, history: History) -> None:
        for name, value in _tagged(record).items():
            target.add_scalar(name, value, record.step)
        target.flush()

    return write


def wandb_sink(run: Any) -> Sink:
    """Into Weights & Biases: a run, or True for the one that is open."""
    if run is True:
        with needs_extra("watch", "wandb=True"):
            import wandb
        run = wandb.run
    check_that(callable(getattr(run, "log", None)), "wandb", run, "a run of wandb, or True inside of one")

    def write(record: Record, history: History) -> None:
        # With a step of its own: theirs must never go back, and the loop logs with it too.
        run.log({**_tagged(record), "hessianlens/step": record.step})

    return write


def _tagged(record: Record) -> dict[str, float]:
    return {f"hessianlens/{name}": value for name, value in record.flat().items() if math.isfinite(value)}
