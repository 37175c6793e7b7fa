"""Runs that are killed at random moments: ``python -m tests.fuzz.kills --kills 200 --seed 0``.

Two runs share one store. Each is a process of its own, begun anew after it was killed. No kill may lose a cell that was
kept, and when the runs are left alone at last, what is exported has the bytes of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters
from hessianlab.runner import Plan, run
from hessianlab.store import last_complete_runs, open_store
from hessianlab.store.export import export_run

LONGEST_LIFE = 0.25
RUNS = 2


@dataclass(frozen=True)
class Config:
    repeats: int = 300


def cells(config: Config) -> list[Parameters]:
    return [{"seed": seed} for seed in range(config.repeats)]


def measure(parameters: Parameters) -> Measurement:
    draw = np.random.default_rng(int(parameters["seed"] or 0))
    time.sleep(0.004)
    return Measurement(({"value": float(draw.standard_normal())},), {"draws": draw.standard_normal(50)})


PRESETS = {"quick": Config(), "paper": Config()}
EXPERIMENT = Experiment("drawn", "drawn", "nowhere", "Does it come back?", PRESETS, cells, measure)


def exported(path: Path, folder: Path) -> dict[str, bytes]:
    """What a store holds of the experiment, as files; times are left out."""
    with open_store(path, readonly=True) as store:
        files = export_run(store, last_complete_runs(store)["drawn"], "csv", folder)
    return {file.name: file.read_bytes() for file in files if not file.name.endswith("provenance.json")}


def begin(path: Path, config: Config) -> int:
    """A run in a process of its own; cheap, since everything is imported here already."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with open_store(path) as store:
            run([Plan(EXPERIMENT, config)], store)
        code = 0
    finally:
        os._exit(code)


@dataclass
class Outcome:
    """What a series of kills has done.

    Attributes:
        kills: Runs that were killed before they had ended.
        rounds: Stores that were filled.
        lost: Cells that were kept and then gone.
        differ: Stores whose export differs from that of an undisturbed run.
        refused: Stores that could not be opened after a kill, or runs that ended by themselves with an error.
    """

    kills: int = 0
    rounds: int = 0
    lost: int = 0
    differ: int = 0
    refused: int = 0


def kill_runs(kills: int, seed: int, folder: Path, config: Config) -> Outcome:
    """So many kills, on as many stores as they need."""
    draw, outcome = random.Random(seed), Outcome()
    with open_store(folder / "undisturbed.sqlite") as store:
        run([Plan(EXPERIMENT, config)], store)
    expected = exported(folder / "undisturbed.sqlite", folder / "undisturbed")
    while outcome.kills < kills:
        path = folder / f"round{outcome.rounds}.sqlite"
        _one_store(path, kills, draw, outcome, config)
        outcome.rounds += 1
        outcome.differ += exported(path, folder / path.stem) != expected
    return outcome


def _one_store(path: Path, kills: int, draw: random.Random, outcome: Outcome, config: Config) -> None:
    running: set[int] = set()
    kept = 0
    while kept < config.repeats and outcome.kills < kills:
        while len(running) < RUNS:
            running.add(begin(path, config))
        time.sleep(draw.uniform(0.0, LONGEST_LIFE))
        victim = draw.choice(sorted(running))
        os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        running.remove(victim)
        outcome.kills += os.WIFSIGNALED(status)
        outcome.refused += os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0
        if path.exists() and path.stat().st_size:
            with open_store(path, readonly=True) as store:
                ((now,),) = store.query("SELECT count(*) FROM cells")
            outcome.lost += max(0, kept - now)
            kept = now
    for child in running:
        _, status = os.waitpid(child, 0)
        outcome.refused += status != 0
    if not running or kept < config.repeats:
        with open_store(path) as store:
            run([Plan(EXPERIMENT, config)], store)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=Config.repeats)
    asked = parser.parse_args()
    gc.freeze()
    with tempfile.TemporaryDirectory() as folder:
        outcome = kill_runs(asked.kills, asked.seed, Path(folder), Config(asked.repeats))
    print(outcome)
    return int(outcome.lost + outcome.differ + outcome.refused > 0)


if __name__ == "__main__":
    sys.exit(main())
