"""Everything a table needs, from names and paths to a problem with chosen blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hessianlens.checks import check_device
from hessianlens.distributed import ranks_of
from hessianlens.inspect.data import Data, caveats, prepare_data, share_of
from hessianlens.inspect.loading import LoadedModel, load_model
from hessianlens.inspect.resources import choose_blocks, fitting_width, longest_sequence, pass_seconds, within_memory
from hessianlens.inspect.settings import PROBES, Settings
from hessianlens.models.adapters import draft_problem
from hessianlens.models.adapters import problem as make_problem
from hessianlens.models.adapters.trial_run import run_dry
from hessianlens.models.adapters.twice_differentiable import LONG
from hessianlens.network.forecasting import Forecast
from hessianlens.problems import Batch, Block, Problem, batch_size
from hessianlens.sizes import number_of
from hessianlens.work_times import WorkTimes, work

PASSES_PER_PRODUCT = 6
"""Times that a product with the Hessian takes as long as the loss: two gradients, each of three."""


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model on its data, ready to be measured.

    Attributes:
        settings: What was asked for.
        loaded: The model.
        data: What it is measured on.
        problem: Both, with a loss.
        blocks: The blocks chosen.
        loss: The value of the loss; not a number for a draft.
        needed: What measuring it will take.
        loss_seconds: Time that the loss took, once.
        work: Processor time so far, by kind of work.
    """

    settings: Settings
    loaded: LoadedModel
    data: Data
    problem: Problem
    blocks: Sequence[Block]
    loss: float
    needed: Forecast
    loss_seconds: float = 0.0
    work: WorkTimes = field(default_factory=WorkTimes)

    @property
    def sampling_seconds(self) -> float:
        """A rough guess of the time that products with all random vectors take, from that of the loss."""
        return PASSES_PER_PRODUCT * self.loss_seconds * self.needed.products

    @property
    def caveats(self) -> tuple[str, ...]:
        """What was drawn at random, and limits what the numbers say."""
        return caveats(self.loaded, self.data)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was decided on the way."""
        return (*self.data.notes, *self.problem.notes)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts."""
        return {
            "model": self.settings.model,
            "described": self.loaded.described,
            "parameters": self.loaded.parameters,
            "data": self.data.described,
            "random_data": self.data.random,
            "random_weights": self.loaded.random_weights,
            "caveats": list(self.caveats),
            "loss": self.problem.reduction,
            "loss_value": None if math.isnan(self.loss) else self.loss,
            "notes": list(self.notes),
            "probes": self.settings.probes,
            "budget": self.settings.seconds,
            "seed": self.settings.seed,
            "dtype": self.settings.dtype,
            "device": str(self.problem.device),
            "batches": len(self.problem.data),
        }


LOADING_PASSES = 6
"""Forward passes over all of the data before anything is measured: two that must agree, the loss as it is computed, by
plain kernels and by the model itself, and its value."""


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A model and its data, before the model runs on all of it.

    Attributes:
        settings: What was asked for.
        loaded: The model.
        data: What it is measured on.
        process_group: Processes that share the sequences.
        draft: Long sequences only: a forecast from a dry run, without a value of the loss; None also where the model
            cannot be run without contents.
        pass_seconds: Time of a forward pass over the data, from excerpts; None where it is not known to be long.
        work: Processor time so far, by kind of work.
    """

    settings: Settings
    loaded: LoadedModel
    data: Data
    process_group: Any = None
    draft: OpenedModel | None = None
    pass_seconds: float | None = None
    work: WorkTimes = field(default_factory=WorkTimes)

    @property
    def loading_seconds(self) -> float:
        """Time that `open` takes, as far as it is known."""
        return LOADING_PASSES * (self.pass_seconds or 0.0)

    @property
    def passes(self) -> str:
        """What `open` does."""
        tokens = longest_sequence(self.data.batches)
        sequences = sum(map(batch_size, self.data.batches))
        each = f" of {tokens:,} tokens" if tokens else ""
        return f"{LOADING_PASSES} forward passes over {number_of(sequences, 'sequence')}{each}"

    def open(self) -> OpenedModel:
        """Run the model, compare its loss, and cut its batches to the memory; every failure is an `InputError`."""
        with self.work.running():
            return self._opened()

    def _opened(self) -> OpenedModel:
        settings, data = self.settings, self.data
        with work("checks"):
            problem = make_problem(
                self.loaded.model,
                _own_share(data, self.process_group),
                data.loss,
                dtype=getattr(torch, settings.dtype),
                device=check_device(settings.device),
                heads=settings.per_head,
                process_group=self.process_group,
            )
        if self.loaded.task is not None:
            problem = replace(problem, reduction="cross_entropy of the sum's digits, mean over them")
        blocks = choose_blocks(problem, settings.blocks, settings.per_head)
        probes = settings.probes or PROBES
        fitted, needed = within_memory(problem, blocks, probes, len(settings.parts), settings.max_memory)
        started = time.monotonic()
        with work("checks"):
            loss = float(fitted.total_loss())
        took = time.monotonic() - started
        return OpenedModel(settings, self.loaded, data, fitted, blocks, loss, needed, took, self.work)


def prepare_model(settings: Settings, process_group: Any = None) -> PreparedModel:
    """Load a model and its data; with long sequences, forecast time and memory before any of them runs.

    Memory that not even one sequence fits into is an `InputError`, as every failure is.

    Args:
        settings: What is asked for.
        process_group: Processes that share the sequences; every one of them reads all and takes its part.
    """
    dtype, device = getattr(torch, settings.dtype), check_device(settings.device)
    with WorkTimes().running() as times, work("loading"):
        loaded = load_model(settings.model, head=settings.head, seed=settings.seed, dtype=dtype)
        amounts = {"sequences": settings.sequences, "length": settings.length}
        data = prepare_data(loaded, settings.data, **amounts, seed=settings.seed)
    prepared = PreparedModel(settings, loaded, data, process_group, work=times)
    if longest_sequence(data.batches) < LONG:
        return prepared
    ranks = ranks_of(process_group)
    with ranks.raise_together("a forecast"):
        batches = _own_share(data, process_group) or data.batches
        problem = draft_problem(loaded.model, batches, data.loss, dtype=dtype, device=device, heads=settings.per_head)
        seconds = pass_seconds(problem)
        draft = _draft(prepared, problem, seconds or 0.0)
    known = ranks.broadcast(-1.0 if seconds is None else seconds)
    return replace(prepared, draft=draft, pass_seconds=None if known < 0 else known)


def _draft(prepared: PreparedModel, problem: Problem, seconds: float) -> OpenedModel | None:
    """The forecast of a draft; None where the model cannot be run without contents."""
    settings, loaded = prepared.settings, prepared.loaded
    if run_dry(loaded.model, problem, problem.data[0], with_targets=False) is None:
        return None
    blocks = choose_blocks(problem, settings.blocks, settings.per_head)
    probes = settings.probes or PROBES
    needed, _ = fitting_width(problem, blocks, probes, len(settings.parts), settings.max_memory)
    return OpenedModel(settings, loaded, prepared.data, problem, blocks, math.nan, needed, seconds)


def _own_share(data: Data, process_group: Any) -> list[Batch]:
    """The batches of this process."""
    ranks = ranks_of(process_group)
    return data.batches if ranks.size == 1 else share_of(data.batches, ranks.rank, ranks.size)


def open_model(settings: Settings, process_group: Any = None) -> OpenedModel:
    """Load, prepare and check; every failure is an `InputError`.

    Args:
        settings: What is asked for.
        process_group: Processes that share the sequences; every one of them reads all and takes its part.

    >>> from hessianlens.inspect.settings import Settings
    >>> opened = open_model(Settings("toy:d_model=8", blocks=("layer0.attn.?",), sequences=2))
    >>> [block.name for block in opened.blocks], opened.data.random
    (['layer0.attn.q', 'layer0.attn.k', 'layer0.attn.v', 'layer0.attn.o'], True)
    """
    return prepare_model(settings, process_group).open()
