"""Everything a table needs, from names and paths to a problem with chosen blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hessianlens.errors import check_choice, check_device, expect
from hessianlens.inspect.blockwise import choose_blocks, within_memory
from hessianlens.inspect.caveats import caveats
from hessianlens.inspect.data import Data, prepare_data
from hessianlens.inspect.loading import LoadedModel, load_model
from hessianlens.inspect.norms import PARTS
from hessianlens.models.adapters import problem as make_problem
from hessianlens.problems import Block, Problem

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Settings:
    """What is asked for, as texts and numbers.

    Attributes:
        model: Name of the model, as `load_model` takes it.
        data: A file; None for random data.
        blocks: Patterns; all blocks if empty.
        per_head: Whether heads are blocks of their own.
        parts: Among "full", "ggn" and "functional".
        probes: Random vectors a block.
        seed: Draws probes, random data and random weights.
        dtype: "float32" or "float64".
        device: Where to compute.
        max_memory: Such as "2GB"; None for no limit.
        head: What a Hugging Face model predicts; "auto" lets its configuration decide.
        sequences: How many sequences of data.
        length: Tokens of a sequence, at most.
    """

    model: str
    data: Path | None = None
    blocks: tuple[str, ...] = ()
    per_head: bool = False
    parts: tuple[str, ...] = PARTS
    probes: int = 20
    seed: int = 0
    dtype: str = "float64"
    device: str = "cpu"
    max_memory: str | None = None
    head: str = "auto"
    sequences: int | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        """Settings that no model could make sense of are refused before one is loaded."""
        check_choice("dtype", self.dtype, DTYPES)
        expect(self.probes >= 2, f"probes: got {self.probes}, expected at least 2 for an error bar.")
        expect(0 <= self.seed < 2**63, f"seed: got {self.seed}, expected a whole number from 0 to 2^63 - 1.")
        expect(len(self.parts) > 0, f"parts: got none, expected some of {', '.join(PARTS)}.")
        for part in self.parts:
            check_choice("parts", part, PARTS)


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
    """

    settings: Settings
    loaded: LoadedModel
    data: Data
    problem: Problem
    blocks: Sequence[Block]
    loss: float

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
            "seed": self.settings.seed,
            "dtype": self.settings.dtype,
            "device": str(self.problem.device),
            "batches": len(self.problem.data),
        }


def open_model(settings: Settings) -> Opened:
    """Load, prepare and check; every failure is an `InputError`.

    >>> opened = open_model(Settings("toy:d_model=8", blocks=("layer0.attn.?",), sequences=2))
    >>> [block.name for block in opened.blocks], opened.data.random
    (['layer0.attn.q', 'layer0.attn.k', 'layer0.attn.v', 'layer0.attn.o'], True)
    """
    dtype, device = DTYPES[settings.dtype], check_device(settings.device)
    loaded = load_model(settings.model, head=settings.head, seed=settings.seed, dtype=dtype)
    data = prepare_data(loaded, settings.data, sequences=settings.sequences, length=settings.length, seed=settings.seed)
    problem = make_problem(loaded.model, data.batches, data.loss, dtype=dtype, device=device, heads=settings.per_head)
    if loaded.task is not None:
        problem = replace(problem, reduction="cross_entropy of the sum's digits, mean over them")
    blocks = choose_blocks(problem, settings.blocks, settings.per_head)
    fitted = within_memory(problem, blocks, settings.probes, len(settings.parts), settings.max_memory)
    return Opened(settings, loaded, data, fitted, blocks, float(fitted.total_loss()))
