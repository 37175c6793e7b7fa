"""Saved checkpoints and the steps they belong to; told without torch, so that a typing error is answered at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hessianlens.errors import expect


@dataclass(frozen=True)
class Checkpoint:
    """A folder with a model, and the step at which it was saved.

    Attributes:
        path: The folder.
        step: Steps of the optimiser until then.
        lr: The learning rate that the Trainer told last; None if it did not.
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
            f"checkpoints: '{one.path}' and '{other.path}' are both of step {one.step}, expected one model a step.",
        )
    return found


def _checkpoint(path: Path) -> Checkpoint:
    expect(path.is_dir(), f"checkpoints: got '{path}', but there is no such folder; expected saved models.")
    expect((path / "config.json").is_file(), f"checkpoints: '{path}' holds no config.json, expected a saved model.")
    state = path / "trainer_state.json"
    if state.is_file():
        try:
            told = json.loads(state.read_text(encoding="utf-8"))
            rates = [entry["learning_rate"] for entry in told.get("log_history", ()) if "learning_rate" in entry]
            return Checkpoint(path, int(told["global_step"]), float(rates[-1]) if rates else None)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass  # written halfway, or by something else: the name may know
    numbers = re.findall(r"\d+", path.name)
    expect(
        bool(numbers),
        f"checkpoints: '{path}' has neither a trainer_state.json nor a number in its name, expected its step, as in "
        "checkpoint-500.",
    )
    return Checkpoint(path, int(numbers[-1]))
