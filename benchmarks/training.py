"""Trainings of small models: all of a cell at once, against one after the other with PyTorch's own optimiser."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks import provenance
from benchmarks.harness import (
    QUICK_ROUNDS,
    Competitor,
    Options,
    Run,
    Tick,
    disturbance,
    first_calls,
    interleave,
    summarise,
)
from benchmarks.results import OURS, PEER, Result
from hessianlab.studies.ensemble import Adam, Ensemble, Schedule, TrainingData, train
from hessianlens.models import Transformer
from hessianlens.tasks import Addition

OURS_NAME, PEER_NAME = "ours: all at once", "one after the other, torch.optim.Adam"
RATE = 3e-3
AGREE = 1e-4
"""Largest difference of a final weight between the two, in float64, over a few steps."""


@dataclass(frozen=True)
class Setting:
    """A cell of a study: models of one block on 2-digit addition, `members` of them for `steps` steps."""

    members: int = 16
    width: int = 16
    batch: int = 16
    steps: int = 20
    dtype: torch.dtype = torch.float32

    @property
    def task(self) -> Addition:
        return Addition(digits=2)

    def models(self) -> list[Transformer]:
        task = self.task
        return [
            Transformer(
                1,
                self.width,
                vocab=task.vocab,
                context=task.context,
                norm="pre",
                seed=s,
                attention_bias=False,
                dtype=self.dtype,
            )
            for s in range(self.members)
        ]

    def loss(self, model: torch.nn.Module, tokens: Tensor) -> Tensor:
        return self.task.cross_entropy(model(tokens), tokens)

    def draw(self, size: int, seed: int) -> Tensor:
        return self.task.batch(size, seed)["tokens"]


def at_once(setting: Setting) -> Run:
    """The ensemble."""

    def run() -> Tensor:
        ensemble = Ensemble(setting.models())
        data = TrainingData(setting.draw, list(range(setting.members)), setting.batch)
        rates = torch.full((setting.members, 1), RATE, dtype=setting.dtype)
        train(ensemble, data, setting.loss, Adam(), rates, Schedule(setting.steps))
        return ensemble.weights

    return run


def one_by_one(setting: Setting) -> Run:
    """What a user writes: a model, an optimiser, a loop; for each."""

    def run() -> Tensor:
        found = []
        for seed, model in enumerate(setting.models()):
            data = TrainingData(setting.draw, [seed], setting.batch)
            optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
            for step in range(setting.steps):
                optimiser.param_groups[0]["lr"] = RATE * Schedule(setting.steps).factor(step)
                optimiser.zero_grad()
                setting.loss(model, data.at(step)[0]).backward()
                optimiser.step()
            found.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        return torch.stack(found)

    return run


def check(steps: int = 5) -> float:
    """The largest difference of the two in double precision; raises if it is more than rounding."""
    setting = Setting(members=3, width=8, batch=4, steps=steps, dtype=torch.float64)
    gap = float((at_once(setting)() - one_by_one(setting)()).abs().max())
    if not gap <= AGREE * RATE:
        raise AssertionError(f"Trained at once and one by one, weights differ by {gap:.3g}.")
    return gap


@dataclass(frozen=True)
class TrainingBenchmark:
    """Runs a minute, at once and one by one."""

    name: str
    title: str
    setting: Setting
    target: float
    rounds: int

    def steps(self, options: Options) -> int:
        """How often a run ticks."""
        return 2 + (QUICK_ROUNDS if options.quick else self.rounds)

    def run(self, options: Options, tick: Tick) -> Result:
        """Check, time in rounds, and tell trainings a minute."""
        torch.set_num_threads(options.threads)
        gap = check()
        tick("agreement")
        competitors = (
            Competitor(OURS_NAME, lambda _: at_once(self.setting), OURS),
            Competitor(PEER_NAME, lambda _: one_by_one(self.setting), PEER),
        )
        runs = {OURS_NAME: at_once(self.setting), PEER_NAME: one_by_one(self.setting)}
        _, first = first_calls(runs)
        tick("first calls")
        rounds = QUICK_ROUNDS if options.quick else self.rounds
        wall: dict[str, list[float]] = {}
        seconds = interleave(runs, rounds, tick, wall=wall)
        timings = summarise(competitors, seconds, first, wall)
        a_minute = {t.name: 60 / (t.seconds.median / self.setting.members * 1000 / self.setting.steps) for t in timings}
        told = ", ".join(f"{name}: {number:.0f}" for name, number in a_minute.items())
        result = Result(
            name=self.name,
            title=self.title,
            setting={"members": self.setting.members, "d": self.setting.width, "sequences": self.setting.batch}
            | {"steps": self.setting.steps, "dtype": "float32"},
            target=self.target,
            against=PEER_NAME,
            rounds=rounds,
            timings=timings,
            details={"trainings of 1000 steps a minute": a_minute, "largest difference in float64": gap},
            notes=(f"Trainings of 1000 steps a minute: {told}.", *disturbance(timings)),
            provenance=provenance.collect(),
        )
        result.save()
        return result


TRAININGS = (
    TrainingBenchmark("training", "Sixteen trainings of a small Transformer", Setting(), 5, 7),
    TrainingBenchmark(
        "training_wide", "The same, twice as wide and on twice the data", Setting(width=32, batch=32), 5, 5
    ),
)
