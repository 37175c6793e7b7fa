"""Everything a table needs, from names and paths to a problem with chosen blocks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from hessianlens.checks import check_device
from hessianlens.distributed import ranks_of
from hessianlens.inspect.blockwise import choose_blocks, within_memory
from hessianlens.inspect.data import Data, prepare_data
from hessianlens.inspect.loading import LoadedModel, load_model
from hessianlens.inspect.randomness import caveats
from hessianlens.inspect.settings import PROBES, Settings
from hessianlens.inspect.sharing import share_of
from hessianlens.models.adapters import problem as make_problem
from hessianlens.network.forecasting import Forecast
from hessianlens.problems import Block, Problem

PASSES_PER_PRODUCT = 6
"""Times that a product with the Hessian takes as long as the loss: two gradients, each of three."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model on its data, ready to be measured.

    Attributes:
        settings: What was asked for.
        loaded: The model.
        data: What it is measured on.
        problem: Both, with a loss.
        blocks: The blocks chosen.
        loss: The value of the loss.
        needed: What measuring it will take.
        loss_seconds: Time that the loss took, once.
    """

    settings: Settings
    loaded: LoadedModel
    data: Data
    problem: Problem
    blocks: Sequence[Block]
    loss: float
    needed: Forecast
    loss_seconds: float = 0.0

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
            "loss_value": self.loss,
            "notes": list(self.notes),
            "probes": self.settings.probes,
            "budget": self.settings.seconds,
            "seed": self.settings.seed,
            "dtype": self.settings.dtype,
            "device": str(self.problem.device),
            "batches": len(self.problem.data),
        }


def open_model(settings: Settings, process_group: object = None) -> Opened:
    """Load, prepare and check; every failure is an `InputError`.

    Args:
        settings: What is asked for.
        process_group: Processes that share the sequences; every one of them reads all and takes its part.

    >>> from hessianlens.inspect.settings import Settings
    >>> opened = open_model(Settings("toy:d_model=8", blocks=("layer0.attn.?",), sequences=2))
    >>> [block.name for block in opened.blocks], opened.data.random
    (['layer0.attn.q', 'layer0.attn.k', 'layer0.attn.v', 'layer0.attn.o'], True)
    """
    dtype, device = getattr(torch, settings.dtype), check_device(settings.device)
    loaded = load_model(settings.model, head=settings.head, seed=settings.seed, dtype=dtype)
    data = prepare_data(loaded, settings.data, sequences=settings.sequences, length=settings.length, seed=settings.seed)
    ranks = ranks_of(process_group)
    problem = make_problem(
        loaded.model,
        data.batches if ranks.size == 1 else share_of(data.batches, ranks.rank, ranks.size),
        data.loss,
        dtype=dtype,
        device=device,
        heads=settings.per_head,
        process_group=process_group,
    )
    if loaded.task is not None:
        problem = replace(problem, reduction="cross_entropy of the sum's digits, mean over them")
    blocks = choose_blocks(problem, settings.blocks, settings.per_head)
    probes = settings.probes or PROBES
    fitted, needed = within_memory(problem, blocks, probes, len(settings.parts), settings.max_memory)
    started = time.monotonic()
    loss = float(fitted.total_loss())
    return Opened(settings, loaded, data, fitted, blocks, loss, needed, time.monotonic() - started)
