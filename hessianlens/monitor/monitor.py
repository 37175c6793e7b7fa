"""`Monitor`: the curvature of a model while it is trained, at a bounded price and without side effects."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from hessianlens.errors import (
    InputError,
    check_flag,
    check_whole,
    expect,
)
from hessianlens.memory import lacks_memory
from hessianlens.models.adapters.loss_choice import LossLike
from hessianlens.monitor.alarms import new_alarms
from hessianlens.monitor.arguments import QUANTITIES, check_quantities, make_effort
from hessianlens.monitor.history import History
from hessianlens.monitor.inputs import targets_from_old_names, watched_problem
from hessianlens.monitor.integrations import Sink, make_log
from hessianlens.monitor.live_measurements import LiveMeasurements
from hessianlens.monitor.live_problem import LiveProblem
from hessianlens.monitor.measurement import Measurer, WorkPiece
from hessianlens.monitor.ongoing import Ongoing
from hessianlens.monitor.pace import Pace
from hessianlens.monitor.plan import MeasurementPlan
from hessianlens.monitor.records import Record, RecordFile
from hessianlens.network.head_health import HeadAlarm
from hessianlens.problems import Batch, Block, Problem
from hessianlens.state_guard import restores_state, without_side_effects
from hessianlens.updates.optimizers import check_optimizer

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from pandas import DataFrame


class Monitor:
    """Monitors the Hessian of a model during training.

    On a fixed probe batch, for the whole model and for every selected block:

    =============  ==================================================================================================
    quantity       what is recorded
    =============  ==================================================================================================
    ``top``        the largest eigenvalue, by a search from the previous eigenvector; its residual as interval
    ``trace``      the trace, with its 95 % interval
    ``norm``       the Frobenius norm, with its 95 % interval
    ``negative``   shares of eigenvalues: ``negative``, ``zero`` (up to a thousandth of the largest), ``positive``;
                   and ``negative_mass``, the share of negative curvature; intervals account for the small
                   number of Lanczos steps
    ``gradient``   the norm of the gradient
    ``weight``     the norm of the weights
    ``entropy``    per layer: mean attention entropy, that of the lowest head, the mean as a share of uniform
                   attention's, and the share of ``saturated`` rows, with 99 % on one token
    ``heads``      per attention head: largest logit, entropy, weight on the first token, norm of softmax's Jacobian,
                   second and third moments of the values; `alarms` lists the heads beyond a threshold
    ``edge``       ``sharpness``, the largest curvature in the geometry of the optimiser (preconditioned for Adam, over
                   steps of unit norm for sign descent, Lion and Muon), and ``edge``, its stability threshold:
                   ``2 / lr`` for plain gradient descent (others: `monitor.edge_of_stability`)
    =============  ==================================================================================================

    Trace, norm and negative share use the same probes at every step, so that changes in a curve come from the model.

    Measurements are spread over steps, and `overhead` limits their time relative to that of training. Model, gradients,
    buffers, hooks, modes, the optimiser and all random states stay bitwise unchanged.

    Args:
        problem: From `hessianlens.problem`, for the model in training; or that model itself, with `data`.
        blocks: Names, globs or ``re:`` expressions of blocks to monitor individually; default: none.
        data: The probe batch, if a model is given; as for `hessianlens.problem`.
        loss: The loss, if a model is given; as for `hessianlens.problem`.
        optimizer: The optimiser, for learning rate and edge; it can be passed at every step instead.
        every: Minimum number of steps between the starts of two measurements.
        overhead: Maximum ratio of measurement time to training time, in any stretch of the run, up to one HVP; None for
            no limit. With a limit, a measurement is spread over steps, on a copy of the weights; what does not fit
            into the limit is left out, and a note in the record says so.
        quantities: Any of those above; default: all.
        whole: Whether to monitor the model as a whole, too.
        probes: Probe vectors (Rademacher) for trace, norm and negative share.
        steps: Lanczos steps per probe vector.
        rtol: Tolerance for the residual of largest eigenvalues, relative to the eigenvalue.
        seed: Seed of the probe vectors.
        log: One or several destinations of records: ``"run.jsonl"`` saves every record at once, survives `kill -9` and
            is continued by the next run; ``"run.csv"`` is a table; ``"runs/curvature"``, a folder, or a `SummaryWriter`
            is for TensorBoard; ``wandb.run`` for Weights & Biases; a function is called with a dictionary of numbers
            and the step, as are ``accelerator.log``, ``mlflow.log_metrics`` and ``trackio.log``.
        **old: Earlier names: `store`, `csv`, `tensorboard`, `wandb` and `sinks` for `log`; `warm` and `clock` for the
            attributes `warm_start` and ``pace.clock``; `tol` for `rtol`.

    >>> import torch
    >>> import hessianlens as hl
    >>> model, task = hl.models.Transformer(d_model=8, d_mlp=16), hl.tasks.Addition(digits=2)
    >>> problem = hl.problem(model, task.batch(4, seed=0), task.cross_entropy)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> monitor = hl.Monitor(problem, ["layer0.attn.q"], optimizer=optimizer, every=2, overhead=None)
    >>> for step in range(1, 6):
    ...     batch = task.batch(16, seed=step)
    ...     optimizer.zero_grad()
    ...     task.cross_entropy(model(batch["tokens"]), batch).backward()
    ...     optimizer.step()
    ...     record = monitor.step()
    >>> monitor
    Monitor of 3 records at steps 1 to 5: model, layer0.attn.q, layer0.attn, 1 attention head
    >>> monitor.history[-1].numbers["model"]["edge"].value
    20.0
    """

    @restores_state
    def __init__(
        self,
        problem: Problem | nn.Module,
        blocks: str | Sequence[str] | None = None,
        *,
        data: Batch | Iterable[Batch] | None = None,
        loss: LossLike = None,
        optimizer: Any = None,
        every: int = 50,
        overhead: float | None = 0.1,
        quantities: Sequence[str] = QUANTITIES,
        whole: bool = True,
        probes: int = 4,
        steps: int = 6,
        rtol: float = 0.05,
        seed: int = 0,
        log: Any = (),
        **old: Any,
    ) -> None:
        targets = [*targets_from_old_names(old), *(log if isinstance(log, list | tuple) else [log])]
        self.pace = Pace(every, overhead, old.get("clock", time.perf_counter))
        effort = make_effort(probes, steps, old.get("tol", rtol), seed=seed, warm=old.get("warm", True))
        measurer = Measurer(check_quantities(quantities), effort)
        check_flag("whole", whole)
        with without_side_effects():
            live = LiveProblem(watched_problem(problem, data, loss))
        self.blocks: list[Block] = [] if blocks is None else live.base.select(blocks)
        expect(whole or bool(self.blocks), "blocks: got none and whole=False, expected something to watch.")
        if optimizer is not None:
            check_optimizer(optimizer)
        self.whole, self.optimizer = whole, optimizer
        self._measurements = LiveMeasurements(live, measurer, self.pace, self.blocks, whole)
        self.history, self._sinks = History(), list[Sink]()
        for made in map(make_log, targets):
            if isinstance(made, RecordFile):
                self.history = History(made.read())
                self._sinks.insert(0, lambda record, _, file=made: file.add(record))  # type: ignore[misc]
            else:
                self._sinks.append(made)
        self._step = self.history[-1].step if len(self.history) else 0
        self._resumed: float | None = None
        self._ongoing: Ongoing | None = None
        self.setup_seconds = 0.0
        if overhead is not None:
            self.set_up()

    @restores_state
    def set_up(self) -> None:
        """Do all one-time work (checks of second derivatives, choice of the HVP method) before the run begins.

        This also times the pieces of a measurement, so that the first measurement keeps to `overhead` like the others.
        It is called if there is an `overhead`; call it again if you change `pace.clock`.
        """
        began = self.pace.clock()
        self._measurements.set_up()
        self.setup_seconds = self.pace.clock() - began

    @property
    def problem(self) -> Problem:
        """The model as it is now, on the probe batch."""
        return self._measurements.live.now()

    @property
    def warm_start(self) -> bool:
        """Whether the search for a largest eigenvalue starts from the previous eigenvector."""
        return self._measurements.measurer.effort.warm

    @warm_start.setter
    def warm_start(self, value: bool) -> None:
        check_flag("warm_start", value)
        measurer = self._measurements.measurer
        measurer.effort = replace(measurer.effort, warm=value)

    @property
    def products(self) -> int:
        """Number of HVPs so far."""
        return self._measurements.measurer.products

    @property
    def search_products(self) -> int:
        """Number of HVPs that the search for largest eigenvalues has taken so far."""
        return self._measurements.measurer.searched

    @property
    def piece_seconds(self) -> dict[str, float]:
        """Recent seconds per piece of a measurement, for the first matrix: "gradient", "attention", "HVP" ..."""
        found: dict[str, float] = {}
        for piece, seconds in self._measurements.prices:
            found.setdefault(piece.work, seconds / piece.vectors)
        return found

    @property
    def overhead(self) -> float:
        """Ratio of measurement time to training time so far."""
        return self.pace.share

    def step(self, step: int | None = None, *, optimizer: Any = None, **given: float) -> Record | None:
        """Count an optimiser step, measure as much as `overhead` allows, and return a record once it is complete.

        A record belongs to the step at which its measurement began, `Record.step`: all its numbers are for its weights.

        Args:
            step: Number of the step; default: one more than the last.
            optimizer: The optimiser, if it was not given before.
            **given: Other numbers to record, such as ``loss``; also ``lr``, if there is no optimiser.
        """
        self._step = self._step + 1 if step is None else check_whole("step", step, 0)
        self.pace.tick(self._step)
        if self._ongoing is not None and self._step < self._ongoing.step:
            self._ongoing = None  # the run was taken back to a checkpoint
        if self._ongoing is None:
            if not self.pace.due(self._step):
                return None
            if self.pace.overhead is None:
                return self.measure(self._step, optimizer=optimizer, **given)
            if not self._measurements.affords(WorkPiece("gradient")):
                return None
            self._ongoing = self._begin(optimizer, given, self._measurements.affordable_plan)
        return self._advance() if self._measurements.affords(self._ongoing.piece) else None

    @restores_state
    def measure(self, step: int | None = None, *, optimizer: Any = None, **given: float) -> Record:
        """Measure everything now, regardless of `overhead`; arguments as for `step`. Discards any unfinished one."""
        self._step = self._step if step is None else check_whole("step", step, 0)
        self._ongoing = self._begin(optimizer, given, self._measurements.whole_plan)
        record = self._advance(at_any_price=True)
        assert record is not None
        return record

    def finish(self) -> Record | None:
        """End the measurement underway and return what it has, as at the end of a run; None if there is nothing."""
        ongoing, self._ongoing = self._ongoing, None
        if ongoing is None or not ongoing.found:
            return None
        ongoing.notes.append(f"the run ended before these were measured: {', '.join(ongoing.missing) or 'none'}")
        return self._complete(ongoing)

    def _begin(self, optimizer: Any, given: Mapping[str, float], plan: MeasurementPlan) -> Ongoing:
        optimizer = self.optimizer if optimizer is None else optimizer
        return self._measurements.begin(self._step, plan, optimizer, given, self._earlier())

    @restores_state
    def _advance(self, at_any_price: bool = False) -> Record | None:
        """Go on with the measurement as far as it is paid for; its record if it is complete then."""
        ongoing, self._ongoing = self._ongoing, None  # an interruption ends it
        assert ongoing is not None
        try:
            with without_side_effects():
                while ongoing.piece is not None:
                    if not at_any_price and not self._measurements.affords(ongoing.piece):
                        self._ongoing = ongoing
                        return None
                    ongoing.work(self.pace, self._measurements.prices)
            self._measurements.live.verified()
        except (InputError, RuntimeError, MemoryError) as error:
            self._failed(ongoing, error)
        return self._complete(ongoing)

    def _failed(self, ongoing: Ongoing, error: Exception) -> None:
        """What can be measured; a run that goes wrong later is not ended by being watched."""
        passing = isinstance(error, InputError) or lacks_memory(error)
        if not len(self.history) or not passing:
            raise error
        ongoing.notes.append(f"not measured: {' '.join(str(error).split())[:300]}")
        warnings.warn(f"hessianlens: step {ongoing.step} was {ongoing.notes[-1]}", RuntimeWarning, stacklevel=5)

    def _complete(self, ongoing: Ongoing) -> Record:
        """Its record, in the history and wherever else records go."""
        self._ongoing = None
        record = ongoing.record(self._step, self.products)
        earlier = [one for one in self.history if one.step < record.step]
        record = replace(record, notes=(*record.notes, *map(str, new_alarms([*earlier, record]))))
        self.history.add(record)
        for sink in self._sinks:
            sink(record, self.history)
        return record

    def _earlier(self) -> float:
        """Seconds of training before this process went on with the run: as far as the checkpoint that it began from."""
        if self._resumed is None:
            self._resumed = max((record.trained for record in self.history if record.step < self._step), default=0.0)
        return self._resumed

    @property
    def alarms(self) -> list[HeadAlarm]:
        """Attention heads beyond a threshold now, each with the step at which this began and a remedy."""
        return self.history.alarms()

    # --- what was measured -------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per record."""
        return self.history.rows()

    def to_frame(self) -> DataFrame:
        """A pandas DataFrame with one row per record."""
        return self.history.to_frame()

    def plot(self, ax: Axes | None = None, quantity: str | None = None) -> Axes:
        """Plot one quantity over the run; needs matplotlib. Arguments as for `History.plot`."""
        return self.history.plot(ax, quantity)

    def page(self, path: str | os.PathLike[str], title: str = "A training run") -> Path:
        """A self-contained HTML page with plots of all quantities over the run."""
        return self.history.page(path, title)

    def _repr_html_(self) -> str:
        return self.history._repr_html_()

    def __repr__(self) -> str:
        if not len(self.history) and self.pace.overhead is not None:
            ongoing = "none has begun" if self._ongoing is None else repr(self._ongoing)
            return f"Monitor without a record ({ongoing}): overhead={self.pace.overhead:g} spreads it over many steps"
        return repr(self.history).replace("History of", "Monitor of").replace("records, steps", "records at steps")

    # --- the loops of others -----------------------------------------------------------------------------------------

    def attach(self, trainer: Any) -> Monitor:
        """Measure in the loop of a Hugging Face or Lightning `Trainer`; the numbers appear in its own log.

        Choose reporters and loggers (TensorBoard, Weights & Biases, MLflow ...) in the trainer. Numbers of individual
        attention heads are in `history` only; the log shows the extremes of every layer.
        """
        from hessianlens.monitor.integrations import attach

        attach(self, trainer)
        return self

    def trainer_callback(self) -> Any:
        """A callback for the `Trainer` of Hugging Face transformers: ``Trainer(..., callbacks=[this])``."""
        from hessianlens.monitor.integrations import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """A callback for Lightning's `Trainer`: ``Trainer(callbacks=[this])``."""
        from hessianlens.monitor.integrations import lightning_callback

        return lightning_callback(self)
