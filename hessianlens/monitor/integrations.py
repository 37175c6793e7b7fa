"""Loops and dashboards of others: callbacks for Hugging Face and Lightning, TensorBoard, Weights & Biases, files."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessianlens.errors import check_path, check_that, expect, needs_extra
from hessianlens.monitor.history import History
from hessianlens.monitor.records import Reading, Record, RecordFile

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
            dictionary of numbers and the step.
    """
    if isinstance(target, str | os.PathLike):
        file = check_path("log", target, "the name of a file or a folder")
        if file.suffix == ".csv":
            return _table(file)
        return RecordFile(file) if file.suffix else _tensorboard(_summary_writer(file))
    if hasattr(target, "add_scalar"):
        return _tensorboard(target)
    if callable(getattr(target, "log", None)):
        return _wandb(target.log)
    if isinstance(target, RecordFile | _RecordFunction):
        return target
    check_that(callable(target), "log", target, "a file, a folder, a SummaryWriter, a run of wandb or a function")
    return _function(target)


def log_from_old_names(given: Mapping[str, Any]) -> list[Any]:
    """What `log` would have been given, from the arguments that it has replaced."""
    found: list[Any] = [_RecordFunction(sink) for sink in given.get("sinks", ())]
    for name in ("store", "csv", "tensorboard", "wandb"):
        target = given.get(name)
        if target is None or target is False:
            continue
        if name == "wandb" and target is True:
            with needs_extra("wandb", "wandb=True"):
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


def _wandb(log: Callable[[dict[str, float]], Any]) -> Sink:
    # With a step of its own: theirs must never go back, and the loop logs with it too.
    return lambda record, _: log({**_tagged(record), "hessianlens/step": record.step})


def _function(function: Callable[..., Any]) -> Sink:
    """A function of a dictionary and the step, as accelerate, MLflow, trackio, Aim and torchtitan have one."""
    owner = getattr(function, "__self__", function)
    module = getattr(owner, "__module__", None) or type(owner).__module__
    if module.partition(".")[0] == "wandb":
        return _wandb(function)
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # of a function in C nothing is known
        names = []
    if names[:1] == ["record"]:
        warnings.warn(
            "log: got a function of a record, expected one of a dictionary of numbers and the step; the record is "
            "what Monitor.step returns",
            DeprecationWarning,
            stacklevel=4,
        )
        return _RecordFunction(function)
    return lambda record, _: function(_tagged(record), record.step if record.until is None else record.until)


@dataclass(frozen=True)
class _RecordFunction:
    """A function of a record and the history, which earlier versions called."""

    function: Sink

    def __call__(self, record: Record, history: History) -> None:
        self.function(record, history)


def _tagged(record: Record) -> dict[str, float]:
    """Numbers by name; also the step that they belong to, where the log is at a later one, as logs do not go back."""
    numbers = record.flat() if record.until is None else {**record.flat(), "step": float(record.step)}
    return {f"hessianlens/{name}": value for name, value in numbers.items() if math.isfinite(value)}


def numbers_for_a_log(record: Record) -> dict[str, float]:
    """What a trainer's own log is given: everything but single attention heads, of which a layer's extremes remain.

    >>> head = lambda logit: {"largest_logit": Reading.of(logit), "sink": Reading.of(0.1)}
    >>> record = Record(
    ...     3, {"model": {"top": Reading.of(2.0)}, "layer0.attn.head0": head(4.0), "layer0.attn.head1": head(9.0)}
    ... )
    >>> numbers_for_a_log(record)
    {'hessianlens/top': 2.0, 'hessianlens/layer0.attn/largest_logit': 9.0, 'hessianlens/layer0.attn/sink': 0.1}
    """
    numbers: dict[str, dict[str, Reading]] = {}
    for owner, readings in record.numbers.items():
        layer, head, _ = owner.rpartition(".head")
        kept = {name: one for name, one in readings.items() if not head or name in _HEAD_EXTREMES}
        known = numbers.setdefault(layer if head else owner, {})
        for name, reading in kept.items():
            known[name] = max(known.get(name, reading), reading) if head else reading
    return _tagged(replace(record, numbers=numbers))


_HEAD_EXTREMES = ("largest_logit", "sink")
"""Of these a trainer's log shows the largest among a layer's heads; the lowest entropy is known per layer already."""


def attach(monitor: Monitor, trainer: Any) -> None:
    """Measure in a trainer's loop, and write into its own log."""
    if callable(getattr(trainer, "add_callback", None)) and callable(getattr(trainer, "log", None)):
        trainer.add_callback(trainer_callback(monitor, trainer))
    elif isinstance(getattr(trainer, "callbacks", None), list) and hasattr(trainer, "loggers"):
        trainer.callbacks.append(lightning_callback(monitor, log=True))
    else:
        expect(
            False,
            f"trainer: got {type(trainer).__name__}, expected a Trainer of Hugging Face transformers or of Lightning; "
            "in a loop of your own call monitor.step() after every step of the optimiser.",
        )


def trainer_callback(monitor: Monitor, trainer: Any = None) -> Any:
    """A `TrainerCallback`; only the main process measures. With the trainer, its log is given the numbers."""
    with needs_extra("hf", "a callback of its Trainer"):
        from transformers import TrainerCallback

    class MonitorCallback(TrainerCallback):
        """Calls `Monitor.step` after every step of the optimiser."""

        def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if not state.is_world_process_zero:
                return
            logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
            given = {"loss": logged[-1]} if logged else {}
            self._log(monitor.step(int(state.global_step), optimizer=objects.get("optimizer"), **given), control)

        def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
            if state.is_world_process_zero:
                self._log(monitor.finish(), control)

        def _log(self, record: Record | None, control: Any) -> None:
            if record is not None and trainer is not None:
                due = control.should_log  # `Trainer.log` takes it back, and the loss of this step would go unlogged
                trainer.log(numbers_for_a_log(replace(record, given={})))
                control.should_log = due

    return MonitorCallback()


def lightning_callback(monitor: Monitor, log: bool = False) -> Any:
    """A callback of `lightning.pytorch` or `pytorch_lightning`, whichever is there; only the main process measures.

    Args:
        monitor: It measures.
        log: Whether the trainer's loggers are given the numbers.
    """

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
            self._log(monitor.step(step, optimizer=optimizer, **given), trainer)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                self._log(monitor.finish(), trainer)

        def _log(self, record: Record | None, trainer: Any) -> None:
            if record is not None and log:
                for logger in trainer.loggers:
                    logger.log_metrics(numbers_for_a_log(replace(record, given={})), step=int(trainer.global_step))

    return MonitorCallback()


def _base() -> type:
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        with needs_extra("watch", "a callback of Lightning"):
            from pytorch_lightning.callbacks import Callback
    return Callback
