"""`Monitor`: the curvature of a model while it is trained, at a bounded price and without a trace."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hessianlens.errors import InputError, Refusal, check_flag, check_that, check_whole, expect
from hessianlens.memory.limits import lacks_memory
from hessianlens.models.adapters import problem as make_problem
from hessianlens.monitor.choices import QUANTITIES, check_quantities, make_effort
from hessianlens.monitor.edge import Edge, check_optimizer, edge_of
from hessianlens.monitor.history import History
from hessianlens.monitor.live import LiveProblem
from hessianlens.monitor.measuring import Measuring, everything
from hessianlens.monitor.pacing import Clock, Pace
from hessianlens.monitor.record import Readings, Record
from hessianlens.monitor.safekeeping import untouched
from hessianlens.monitor.sinks import Sink, csv_sink, store_sink, tensorboard_sink, wandb_sink
from hessianlens.monitor.store import RecordFile
from hessianlens.problems import Block, Problem
from hessianlens.state_guard import restores_state

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from pandas import DataFrame


class Monitor:
    """Watches the Hessian of a model along its training.

    On a fixed probe batch, for the whole model and for every block that is asked for:

    =============  ==================================================================================================
    quantity       what is recorded
    =============  ==================================================================================================
    ``top``        the largest eigenvalue, by a search that begins at the last eigenvector; its residual as interval
    ``trace``      the trace, with its 95 % interval
    ``norm``       the Frobenius norm, with its 95 % interval
    ``negative``   shares of eigenvalues: ``negative``, ``zero`` (up to a thousandth of the largest), ``positive``;
                   and ``negative_mass``, the share of negative curvature; intervals hold what few steps leave open
    ``gradient``   the length of the gradient
    ``weight``     the length of the weights
    ``entropy``    by layer: mean entropy of attention, that of the lowest head, its share of the uniform
                   one's, and the share of rows that are ``saturated``, with 99 % on one token
    ``edge``       of the whole model: ``sharpness``, the largest eigenvalue as the optimiser sees it, and ``edge``, the
                   most it bears: ``2 / lr`` for plain gradient descent (`hessianlens.monitor.edge` has the others)
    =============  ==================================================================================================

    The probes of trace, norm and negative share are the same at every step: what moves in a curve is the model.

    Measurements space themselves out: `overhead` bounds their time over that of training. They leave the model, its
    gradients, buffers, hooks and modes, the optimiser and all random states as they were, bit by bit.

    Args:
        problem: From `hessianlens.problem`, on the model that is trained; or that model, with `data`.
        blocks: Names, globs or ``re:`` expressions of blocks to be watched one by one; default: none.
        data: The probe batch, if a model is given; as for `hessianlens.problem`.
        loss: The loss, if a model is given; as for `hessianlens.problem`.
        optimizer: The optimiser, for learning rate and edge; may be given with every step instead.
        every: Steps between measurements, at least.
        overhead: Time of measurements over that of training, at most; None for no limit. The first measurement is
            made at once, and paid for before the second.
        quantities: Among those above; default: all.
        whole: Whether the model as a whole is watched too.
        probes: Random vectors for trace, norm and negative share.
        steps: Steps of Lanczos from each of them.
        tol: Residual of largest eigenvalues over their size.
        warm: Whether searches begin at the last eigenvector.
        seed: Seed of the random vectors.
        store: A file that keeps every record at once and survives `kill -9`; what it holds already is taken over.
        csv: A file for a table.
        tensorboard: A folder, or a `SummaryWriter`.
        wandb: A run of Weights & Biases, or True for the one that is open.
        sinks: Functions of a new record and the history.
        clock: Seconds that pass, for `overhead`.

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
    Monitor of 3 records at steps 1 to 5: model, layer0.attn.q, layer0.attn
    >>> monitor.history[-1].numbers["model"]["edge"].value
    20.0
    """

    @restores_state
    def __init__(
        self,
        problem: Problem | nn.Module,
        blocks: str | Sequence[str] | None = None,
        *,
        data: object = None,
        loss: Any = None,
        optimizer: Any = None,
        every: int = 50,
        overhead: float | None = 0.1,
        quantities: Sequence[str] = QUANTITIES,
        whole: bool = True,
        probes: int = 4,
        steps: int = 6,
        tol: float = 0.05,
        warm: bool = True,
        seed: int = 0,
        store: str | os.PathLike[str] | None = None,
        csv: str | os.PathLike[str] | None = None,
        tensorboard: Any = None,
        wandb: Any = None,
        sinks: Sequence[Sink] = (),
        clock: Clock = time.perf_counter,
    ) -> None:
        self.pace = Pace(every, overhead, clock)
        self._measuring = Measuring(check_quantities(quantities), make_effort(probes, steps, tol, seed=seed, warm=warm))
        check_flag("whole", whole)
        with untouched():
            self._live = LiveProblem(_problem(problem, data, loss))
        self.blocks: list[Block] = [] if blocks is None else self._live.base.select(blocks)
        expect(whole or bool(self.blocks), "blocks: got none and whole=False, expected something to watch.")
        if optimizer is not None:
            check_optimizer(optimizer)
        self.whole, self.optimizer = whole, optimizer
        known = isinstance(sinks, Sequence) and all(callable(sink) for sink in sinks)
        check_that(known, "sinks", sinks, "functions of a record and the history")
        self._sinks = [*_sinks(csv, tensorboard, wandb), *sinks]
        self.history = History()
        if store is not None:
            file = RecordFile(store)
            self.history = History(file.read())
            self._sinks.insert(0, store_sink(file))
        self._step = self.history[-1].step if len(self.history) else 0
        self._resumed: float | None = None

    @property
    def problem(self) -> Problem:
        """The model as it is now, on the probe batch."""
        return self._live.now()

    @property
    def products(self) -> int:
        """Products with Hessians that were made so far."""
        return self._measuring.products

    @property
    def search_products(self) -> int:
        """Those of them that the search for largest eigenvalues took."""
        return self._measuring.searched

    @property
    def overhead(self) -> float:
        """Time of measurements over that of training, so far."""
        return self.pace.share

    def step(self, step: int | None = None, *, optimizer: Any = None, **given: float) -> Record | None:
        """Say that the optimiser has made a step; measures if it is time to, and then gives the record.

        Args:
            step: Number of the step; default: one more than the last.
            optimizer: The optimiser, unless it was given before.
            **given: Numbers to be recorded with it, such as ``loss``; also ``lr``, if there is no optimiser to ask.
        """
        self._step = self._step + 1 if step is None else check_whole("step", step, 0)
        if not self.pace.due(self._step):
            return None
        return self.measure(self._step, optimizer=optimizer, **given)

    @restores_state
    def measure(self, step: int | None = None, *, optimizer: Any = None, **given: float) -> Record:
        """Measure now, whatever the time; arguments as for `step`."""
        self._step = self._step if step is None else check_whole("step", step, 0)
        optimizer = self.optimizer if optimizer is None else optimizer
        inner = None if optimizer is None else check_optimizer(optimizer)
        told = {name: check_given(name, value) for name, value in given.items()}
        trained, before = self._earlier() + self.pace.trained, self._measuring.products
        with self.pace.measuring(self._step):
            numbers, notes = self._numbers(optimizer)
        if inner is not None and "lr" not in told:
            told = {"lr": max(float(group["lr"]) for group in inner.param_groups), **told}
        record = Record(
            step=self._step,
            numbers=numbers,
            given=told,
            trained=trained,
            cost=self.pace.last,
            products=self._measuring.products - before,
            notes=tuple(notes),
        )
        self.history.add(record)
        for sink in self._sinks:
            sink(record, self.history)
        return record

    def _earlier(self) -> float:
        """Seconds of training before this process went on with the run: as far as the checkpoint that it began from."""
        if self._resumed is None:
            self._resumed = max((record.trained for record in self.history if record.step < self._step), default=0.0)
        return self._resumed

    def _numbers(self, optimizer: Any) -> tuple[Readings, list[str]]:
        """What can be measured; a run that goes wrong later is not ended by being watched."""
        notes: list[str] = []
        try:
            with untouched():
                problem = self._live.now()
                trained = self._live.trained() if self.whole else []
                edge = self._edge(optimizer, trained, notes)
                numbers = everything(self._measuring, problem, trained, self.blocks, edge, notes)
            self._live.verified()
            return numbers, notes
        except (InputError, RuntimeError, MemoryError) as error:
            passing = isinstance(error, InputError) or lacks_memory(error)
            if not len(self.history) or not passing:
                raise
            notes.append(f"not measured: {' '.join(str(error).split())[:300]}")
            warnings.warn(f"hessianlens: step {self._step} was {notes[-1]}", RuntimeWarning, stacklevel=4)
            return {}, notes

    def _edge(self, optimizer: Any, trained: Sequence[Block], notes: list[str]) -> Edge | None:
        if "edge" not in self._measuring.quantities or not trained or optimizer is None:
            return None
        found = edge_of(optimizer, self._live.model, trained)
        if isinstance(found, Refusal):
            notes.append(f"no edge of stability: {found}")
            return None
        return found

    # --- what was measured -------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary a record."""
        return self.history.rows()

    def to_frame(self) -> DataFrame:
        """A pandas frame, a row a record."""
        return self.history.to_frame()

    def plot(self, ax: Axes | None = None, quantity: str | None = None) -> Axes:
        """One quantity along the run; needs matplotlib. Arguments as for `History.plot`."""
        return self.history.plot(ax, quantity)

    def page(self, path: str | os.PathLike[str], title: str = "A training run") -> Path:
        """A self-contained page with all timelines."""
        return self.history.page(path, title)

    def _repr_html_(self) -> str:
        return self.history._repr_html_()

    def __repr__(self) -> str:
        return repr(self.history).replace("History of", "Monitor of").replace("records, steps", "records at steps")

    # --- the loops of others -----------------------------------------------------------------------------------------

    def trainer_callback(self) -> Any:
        """A callback for the `Trainer` of Hugging Face transformers: ``Trainer(..., callbacks=[this])``."""
        from hessianlens.monitor.hugging_face import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """A callback for Lightning's `Trainer`: ``Trainer(callbacks=[this])``."""
        from hessianlens.monitor.lightning import lightning_callback

        return lightning_callback(self)


def _problem(given: Problem | nn.Module, data: object, loss: Any) -> Problem:
    if isinstance(given, Problem):
        expect(data is None and loss is None, "data: got some beside a Problem, which has its own; give one of both.")
        expect(
            given.ranks.size == 1,
            f"problem: got one of {given.ranks.size} processes, whose clocks would differ in when to measure; expected "
            "one of a single process: watch in one of them, or call hessianlens.measure in all of them.",
        )
        return given
    check_that(isinstance(given, nn.Module), "problem", given, "a Problem, or an nn.Module with data")
    expect(data is not None, "data: got none, expected the probe batch on which the model is measured.")
    return make_problem(given, data, loss)


def _sinks(csv: Any, tensorboard: Any, wandb: Any) -> list[Sink]:
    made = ((csv, csv_sink), (tensorboard, tensorboard_sink), (wandb, wandb_sink))
    return [make(target) for target, make in made if target is not None and target is not False]


def check_given(name: str, value: object) -> float:
    """A number that the loop tells, perhaps as a tensor of one entry."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.detach().item()
    check_that(isinstance(value, (int, float)) and not isinstance(value, bool), name, value, "a number")
    assert isinstance(value, (int, float))
    return float(value)
