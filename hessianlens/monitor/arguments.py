"""Arguments of a watched run and of its saved checkpoints; checked without torch, so that errors appear at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hessianlens.errors import check_choice, check_flag, check_number, check_seed, check_that, check_whole, expect

QUANTITIES = ("top", "trace", "norm", "negative", "gradient", "weight", "entropy", "heads", "edge")
"""What can be watched."""


@dataclass(frozen=True)
class Effort:
    """How much goes into the numbers of one matrix.

    Attributes:
        probes: Random vectors for trace, norm and negative share; the same at every measurement.
        steps: Lanczos steps from each; each is one product.
        rtol: Residual of the largest eigenvalue over its size.
        most: Products for the largest eigenvalue at most.
        seed: Seed of the vectors.
        warm: Whether the search for an eigenvalue begins where the last one ended.
    """

    probes: int = 4
    steps: int = 6
    rtol: float = 0.05
    most: int = 60
    seed: int = 0
    warm: bool = True


def check_quantities(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Names of quantities, in the order in which they are measured.

    >>> check_quantities(["edge", "top"])
    ('top', 'edge')
    """
    check_that(isinstance(asked, Sequence), "quantities", asked, f"some of {', '.join(QUANTITIES)}")
    names = [asked] if isinstance(asked, str) else list(asked)
    for name in names:
        check_choice("quantities", name, QUANTITIES)
    expect(bool(names), f"quantities: got none, expected some of {', '.join(QUANTITIES)}.")
    return tuple(name for name in QUANTITIES if name in names)


def make_effort(probes: int, steps: int, rtol: float, *, seed: int = 0, warm: bool = True) -> Effort:
    """How much goes into a measurement, checked."""
    check_whole("probes", probes, 2, why="the interval is their spread")
    check_whole("steps", steps, 2, why="a norm takes two")
    check_number("rtol", rtol, 0.0, strictly=True)
    check_flag("warm", warm)
    return Effort(probes, steps, rtol, seed=check_seed(seed), warm=warm)


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a model, and the step at which it was saved.

    Attributes:
        path: The folder.
        step: Steps of the optimiser until then.
        lr: The learning rate that the Trainer reported last; None if it did not.
    """

    path: Path
    step: int
    lr: float | None = None


def find_checkpoints(names: Sequence[str]) -> list[Checkpoint]:
    """Folders with models by their steps, in order; `InputError` for what is none.

    The step is that of the Trainer's state, else the last number of the folder's name.

    Args:
        names: Paths of folders.
    """
    found = [_checkpoint(Path(name)) for name in dict.fromkeys(names)]
    found.sort(key=lambda checkpoint: checkpoint.step)
    for one, other in pairwise(found):
        expect(
            one.step != other.step,
            f"checkpoints: '{one.path}' and '{other.path}' are both of step {one.step}, expected one model per step.",
        )
    return found


def _checkpoint(path: Path) -> Checkpoint:
    expect(path.is_dir(), f"checkpoints: got '{path}', but there is no such folder; expected saved models.")
    expect((path / "config.json").is_file(), f"checkpoints: '{path}' holds no config.json, expected a saved model.")
    state = path / "trainer_state.json"
    if state.is_file():
        try:
            text = json.loads(state.read_text(encoding="utf-8"))
            rates = [entry["learning_rate"] for entry in text.get("log_history", ()) if "learning_rate" in entry]
            return Checkpoint(path, int(text["global_step"]), float(rates[-1]) if rates else None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # written halfway, or by something else: the name may know
    numbers = re.findall(r"\d+", path.name)
    expect(
        bool(numbers),
        f"checkpoints: '{path}' has neither a trainer_state.json nor a number in its name, expected its step, as in "
        "checkpoint-500.",
    )
    return Checkpoint(path, int(numbers[-1]))
