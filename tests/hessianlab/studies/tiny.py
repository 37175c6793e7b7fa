"""The smallest trials there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hessianlab.studies.training_study import Arm, TrialConfig

TINY = TrialConfig(
    d_model=4,
    steps=6,
    batch=2,
    rates=2,
    tuning_seeds=1,
    seeds=5,
    checkpoints=2,
    validation=8,
    digits=1,
    length=6,
    pairs=2,
)


def cell(arm: Arm, task: str = "addition", **changes: Any) -> dict[str, Any]:
    """The parameters of one cell."""
    return {"task": task, **arm.parameters(), **replace(TINY, **changes).parameters()}
