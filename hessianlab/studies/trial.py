"""One trial: tune the learning rate of an arm, then train other seeds at it and note how they went."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hessianlab.results import Measurement, Parameters, Row
from hessianlab.studies.curvature import (
    FACTS,
    MonitoredModels,
    Watcher,
    candidates,
    curvature_problem,
    group_index,
    growth_exponents,
    mean_curvature,
    rates_by_curvature,
)
from hessianlab.studies.ensemble import Course, Ensemble, Schedule, TrainingData, make_optimiser, train
from hessianlab.studies.models import TaskData, build

TUNING_OFFSET = 1000
"""Seeds that tune lie so far behind those that are reported."""

Notes = dict[int, dict[str, Tensor]]
"""What was noted, by the number of steps taken."""


def measure_trial(parameters: Parameters) -> Measurement:
    """Rows of stages: ``tuning`` (a rate and seed each), ``final`` (a seed and step), ``curvature`` and ``growth``."""
    asked: Any = parameters
    learned = TaskData(parameters)
    tried = candidates(parameters)
    if asked["block_rates"] == "measured":
        tried = tried * _measured_factors(parameters, learned)
    tuning = [asked["seed"] + TUNING_OFFSET + k for k in range(asked["tuning_seeds"])]
    rows, best = _tune(parameters, learned, tried, tuning)
    final = [asked["seed"] + k for k in range(asked["seeds"])]
    at_edge = best // asked["query_key_rates"] in (0, asked["rates"] - 1)
    rows += _report(parameters, learned, tried[best], at_edge, final)
    return Measurement(tuple(rows))


def _tune(parameters: Parameters, learned: TaskData, tried: np.ndarray, seeds: Sequence[int]) -> tuple[list[Row], int]:
    """All rates and seeds at once; the place of the best rate. A training that diverged counts as infinitely bad."""
    members = [(number, seed) for number in range(len(tried)) for seed in seeds]
    rates = tried[[number for number, _ in members]]
    last = _steps(parameters)
    course, notes = _train(parameters, learned, [s for _, s in members], rates, watched=(last,), attention=False)
    losses = _losses(course, notes[last])
    rows: list[Row] = [
        {
            "stage": "tuning",
            "rate": _rate(tried[number]),
            "seed": seed,
            "loss": loss if math.isfinite(loss) else None,
            "diverged": not math.isfinite(loss),
        }
        for (number, seed), loss in zip(members, losses, strict=True)
    ]
    means = np.array(losses).reshape(len(tried), len(seeds)).mean(1)
    return rows, int(means.argmin())


def _report(
    parameters: Parameters, learned: TaskData, rates: np.ndarray, at_edge: bool, seeds: Sequence[int]
) -> list[Row]:
    """The reported seeds at the chosen rate, checkpoint by checkpoint."""
    asked: Any = parameters
    steps = asked["steps"]
    watched = sorted({round(steps * k / asked["checkpoints"]) for k in range(asked["checkpoints"] + 1)})
    looked = sorted({round(steps * k / max(1, asked["curvatures"] - 1)) for k in range(asked["curvatures"])})
    rows: list[Row] = []

    watched_models = (
        MonitoredModels({seed: build(parameters, learned, seed) for seed in seeds}, learned) if looked else None
    )

    def look(step: int, ensemble: Ensemble) -> None:
        if watched_models is not None:
            rows.extend(watched_models.look(step, ensemble))
        for member, seed in enumerate(seeds if asked["growth"] else ()):
            if not bool(ensemble.weights[member].isfinite().all()):
                continue
            known = curvature_problem(ensemble.load(member, build(parameters, learned, seed)), learned)
            names = [name for name in known.blocks if name.endswith((".attn.q", ".attn.v"))]
            when: Row = {"stage": "growth", "seed": seed, "step": step}
            rows.extend({**when, **found} for found in growth_exponents(known, names))

    course, notes = _train(parameters, learned, seeds, np.repeat(rates[None], len(seeds), 0), watched, looked, look)
    for step, noted in notes.items():
        lost = (course.diverged >= 0) & (course.diverged <= step)
        for member, seed in enumerate(seeds):
            gone = bool(lost[member])
            found = {} if gone else _of_member(noted, member)
            stage: Row = {"stage": "final", "rate": _rate(rates), "rate_at_edge": at_edge}
            rows.append({**stage, "seed": seed, "step": step, "diverged": gone, **found})
    return rows


def _train(
    parameters: Parameters,
    learned: TaskData,
    seeds: Sequence[int],
    rates: np.ndarray,
    watched: Sequence[int],
    looked: Sequence[int] = (),
    look: Callable[[int, Ensemble], None] = lambda step, ensemble: None,
    attention: bool = True,
) -> tuple[Course, Notes]:
    """One ensemble from its first step to its last; `rates` is (members, blocks)."""
    asked: Any = parameters
    ensemble = Ensemble([build(parameters, learned, seed) for seed in seeds])
    watcher = Watcher(learned, attention)
    notes: Notes = {}

    def watch(step: int) -> None:
        if step in watched:
            notes[step] = watcher.note(ensemble)
        if step in looked:
            look(step, ensemble)

    each = torch.tensor(rates, dtype=ensemble.weights.dtype)
    one = bool((each == each[:, :1]).all())
    course = train(
        ensemble,
        TrainingData(learned.draw, seeds, asked["batch"]),
        learned.loss,
        make_optimiser(asked["optimiser"], ensemble.columns(), asked["momentum"]),
        each[:, :1] if one else each[:, group_index(ensemble)],
        Schedule(asked["steps"], asked["warm_up"], asked["decay"]),
        watch,
        {*watched, *looked},
    )
    return course, notes


def _steps(parameters: Parameters) -> int:
    asked: Any = parameters
    return int(asked["steps"])


def _losses(course: Course, noted: dict[str, Tensor]) -> list[float]:
    """Final losses, infinite where a training diverged."""
    bad = (course.diverged >= 0) | ~torch.isfinite(noted["loss"])
    found: list[float] = torch.where(bad, torch.inf, noted["loss"].double()).tolist()
    return found


def _rate(rates: np.ndarray) -> float:
    """The rate of the blocks together: their geometric mean."""
    return float(np.exp(np.log(rates).mean()))


def _of_member(noted: dict[str, Tensor], member: int) -> dict[str, Any]:
    """Numbers of one member; a number per layer, and head, has its place in its name."""
    found: dict[str, Any] = {name: float(noted[name][member]) for name in ("loss", "accuracy")}
    facts = noted["attention"][member]
    found |= dict(zip(FACTS, facts.mean(0).tolist(), strict=True))
    for layer, values in enumerate(facts.tolist()):
        found |= {f"{name}_layer{layer}": value for name, value in zip(FACTS, values, strict=True)}
    if "log_gain" in noted:
        found |= {f"log_gain{layer}": float(gains.mean()) for layer, gains in enumerate(noted["log_gain"][member])}
    return {name: value if math.isfinite(value) else None for name, value in found.items()}


def _measured_factors(parameters: Parameters, learned: TaskData) -> np.ndarray:
    """From the curvature of one model at initialisation, of a seed that neither tunes nor is reported."""
    asked: Any = parameters
    model = build(parameters, learned, asked["seed"] + 2 * TUNING_OFFSET)
    return rates_by_curvature(mean_curvature(model, learned))
