"""Loops and dashboards of others: callbacks for Hugging Face and Lightning, TensorBoard, Weights & Biases, files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_path, check_that, needs_extra
from hessianlens.monitor.history import History
from hessianlens.monitor.records import Record, RecordFile

if TYPE_CHECKING:
    from hessianlens.monitor.monitor import Monitor


Sink = Callable[[Record, History], None]
"""Is given a new record, and the history that now ends with it."""
OLD_LOG_NAMES = ("store", "csv", "tensorboard", "wandb", "sinks")
"""Arguments of a monitor that `log` has replaced."""


def make_log(target: Any) -> Sink | RecordFile:
    """Where records go, by what is given.

    Args:
        target: A file, ``.csv`` for a table that is written anew, of another ending for records that a later process
            takes over; a folder for TensorBoard, or a `SummaryWriter`; a run of Weights & Biases; a function of a
            record and the history.
    """
    if isinstance(target, str | os.PathLike):
        file = check_path("log", target, "the name of a file or a folder")
        if file.suffix == ".csv":
            return _table(file)
        return RecordFile(file) if file.suffix else _tensorboard(_summary_writer(file))
    if hasattr(target, "add_scalar"):
        return _tensorboard(target)
    if callable(getattr(target, "log", None)):
        return _wandb(target)
    known = isinstance(target, RecordFile) or callable(target)
    check_that(known, "log", target, "a file, a folder, a SummaryWriter, a run of wandb or a function")
    found: Sink | RecordFile = target
    return found


def log_from_old_names(given: Mapping[str, Any]) -> list[Any]:
    """What `log` would have been given, from the arguments that it has replaced."""
    found = list(given.get("sinks", ()))
    for name in ("store", "csv", "tensorboard", "wandb"):
        target = given.get(name)
        if target is None or target is False:
            continue
        if name == "wandb" and target is True:
            with needs_extra("watch", "wandb=True"):
                import wandb
            target = wandb.run
        path = isinstance(target, str | os.PathLike)
        checks = {"tensorboard": path or hasattr(target, "add_scalar"), "wandb": callable(getattr(target, "log", None))}
        check_that(checks.get(name, path), name, target, "what log= takes: a file, a folder, a writer or a run")
        if name == "store":
            target = RecordFile(target)
        elif name == "tensorboard" and path:
            target = _summary_writer(target)
        found.insert(0, target)
    return found


def _table(file: Path) -> Sink:
    def write(record: Record, history: History) -> None:
        history.to_csv(file)

    return write


def _summary_writer(folder: str | os.PathLike[str]) -> Any:
    with needs_extra("watch", "TensorBoard"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(os.fspath(folder))


def _tensorboard(writer: Any) -> Sink:
    def write(record: Record, history: History) -> None:
        for name, value in _tagged(record).items():
            writer.add_scalar(name, value, record.step)
        writer.flush()

    return write


def _wandb(run: Any) -> Sink:
    # With a step of its own: theirs must never go back, and the loop logs with it too.
    return lambda record, _: run.log({**_tagged(record), "hessianlens/step": record.step})


def _tagged(record: Record) -> dict[str, float]:
    return {f"hessianlens/{name}": value for name, value in record.flat().items() if math.isfinite(value)}


def trainer_callback(monitor: Monitor) -> Any:
    """A `TrainerCallback`; only the main process measures."""
    with needs_extra("hf", "a callback of its Trainer"):
        from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):
        """Calls `Monitor.step` after every step of the optimiser."""

        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if state.is_world_process_zero:
                logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
                given = {"loss": logged[-1]} if logged else {}
                monitor.step(int(state.global_step), optimizer=objects.get("optimizer"), **given)

    return MonitorCallback()


def lightning_callback(monitor: Monitor) -> Any:
    """A callback of `lightning.pytorch` or `pytorch_lightning`, whichever is there; only the main process measures."""

    class MonitorCallback(_base()):  # type: ignore[misc]
        """Calls `Monitor.step` after every batch that ended in a step of the optimiser."""

        _last = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            check_that(hasattr(trainer, "global_step"), "trainer", trainer, "Lightning's Trainer")
            self._last = int(trainer.global_step)

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            step = int(trainer.global_step)
            if step == self._last or not trainer.is_global_zero:  # gradients are accumulated
                return
            self._last = step
            optimizer = trainer.optimizers[0] if len(trainer.optimizers) == 1 else None
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            given = {} if loss is None else {"loss": loss}
            monitor.step(step, optimizer=optimizer, **given)

    return MonitorCallback()


def _base() -> type:
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        with needs_extra("watch", "a callback of Lightning"):
            from pytorch_lightning.callbacks import Callback
    return Callback
