"""Sizes and budgets of a training study."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

from hessianlab.experiments.common.checks import check_config
from hessianlab.results import Scalar
from hessianlens.errors import InputError, expect
from hessianlens.models.arguments import head_width

TASKS = {
    "addition": "addition of two numbers",
    "characters": "a character language model",
    "recall": "associative recall",
}
"""What can be learned, and its name for readers."""

LEAST_SEEDS = 5


@dataclass(frozen=True)
class TrialConfig:
    """Sizes, budget and tuning range; every arm of a study gets the same.

    Attributes:
        tasks: What is learned: "addition", "characters", "recall".
        steps: Steps of every training; there is no other stopping rule.
        batch: Sequences a step.
        rates: Learning rates tried for every arm, evenly spaced in the logarithm.
        adam_low: Smallest learning rate of Adam, as a power of ten.
        adam_high: Largest.
        sgd_low: Smallest learning rate of SGD, as a power of ten.
        sgd_high: Largest.
        tuning_seeds: Seeds that choose the rate, and are used for nothing else.
        seeds: Seeds that are trained at the chosen rate and reported.
        checkpoints: How often loss, accuracy and entropy are noted along a training.
        curvatures: How often the norms of the Hessian's blocks are, from the beginning to the end; 1: at the beginning.
        growth: Whether it is also measured how the blocks of attention grow with the embeddings, whenever norms are.
        validation: Sequences that losses and accuracies are measured on.
        digits: Of the numbers that are added.
        length: Characters of a window of text.
        text: A file to learn the characters of; a generated text if empty.
        pairs: Pairs to recall from.
        seed: The first seed.
    """

    tasks: tuple[str, ...] = ("addition",)
    layers: int = 1
    d_model: int = 16
    heads: int = 1
    steps: int = 300
    batch: int = 16
    rates: int = 5
    adam_low: float = -3.0
    adam_high: float = -1.0
    sgd_low: float = -2.0
    sgd_high: float = 0.5
    tuning_seeds: int = 2
    seeds: int = 6
    checkpoints: int = 10
    curvatures: int = 0
    growth: bool = False
    validation: int = 256
    digits: int = 2
    length: int = 16
    text: str = ""
    pairs: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"curvatures": 0, "rates": 2, "steps": 2, "length": 2}, {"tasks": TASKS})
        for name, least in (("seeds", LEAST_SEEDS), ("tuning_seeds", 1)):
            expect(getattr(self, name) >= least, f"{name}: got {getattr(self, name)}, expected at least {least}.")
        for name in ("adam", "sgd"):
            low, high = getattr(self, f"{name}_low"), getattr(self, f"{name}_high")
            expect(low < high, f"{name}_low, {name}_high: got {low:g} and {high:g}, expected the lower one first.")
        expect(self.checkpoints <= self.steps, f"checkpoints: got {self.checkpoints}, expected at most steps.")
        head_width(self.d_model, self.heads)
        text_digest(self.text)

    @property
    def trainings(self) -> int:
        """Trainings of every arm on every task."""
        return self.rates * self.tuning_seeds + self.seeds

    def parameters(self) -> dict[str, Scalar]:
        """As part of a cell's parameters; a text is known by its digest too."""
        shared = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "tasks"}
        return {**shared, "text_digest": text_digest(self.text)}


def text_digest(path: str) -> str:
    """Of a user's text; empty where there is none."""
    if not path:
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"text: cannot read {path!r} ({error.strerror}); expected a text file in UTF-8.") from error


FULL = TrialConfig(d_model=32, heads=4, steps=1000, seeds=10, checkpoints=20)
"""What presets called "full" begin with: large enough that two numbers of two digits are added, in some more steps."""
