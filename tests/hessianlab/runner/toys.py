"""Experiments small enough to run in tests, but with real linear algebra: their numbers show which threads ran."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_info

from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters


@dataclass(frozen=True)
class ToyConfig:
    sizes: tuple[int, ...] = (40, 80)
    repeats: int = 3
    seed: int = 0
    seconds: float = 0.0
    folder: str = ""
    bad: int = -1


def cells(config: ToyConfig) -> list[Parameters]:
    return [
        {
            "size": size,
            "repeat": repeat,
            "seed": config.seed + repeat,
            "seconds": config.seconds,
            "folder": config.folder,
            "bad": repeat == config.bad,
        }
        for size in config.sizes
        for repeat in range(config.repeats)
    ]


def busiest() -> int:
    """The most threads that any library here would use now."""
    return max(torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info()))


def spectrum(parameters: Parameters) -> Measurement:
    """Eigenvalues by NumPy, a norm by torch; both change in the last bits with the number of threads."""
    size, seed = int(parameters["size"]), int(parameters["seed"])
    time.sleep(float(parameters["seconds"]))
    matrix = np.random.default_rng(seed).standard_normal((size, size))
    eigenvalues = np.linalg.eigvalsh(matrix @ matrix.T)
    tensor = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    norm = float((tensor @ tensor.T @ tensor).norm())
    rows = ({"what": "norm", "value": norm}, {"what": "threads", "value": busiest()})
    return Measurement(rows, {"eigenvalues": eigenvalues})


def raise_when_bad(parameters: Parameters) -> Measurement:
    if parameters["bad"]:
        raise ZeroDivisionError("this one\nis bad")
    return spectrum(parameters)


def die_when_bad(parameters: Parameters) -> Measurement:
    """Takes its worker with it, every time."""
    if parameters["bad"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return spectrum(parameters)


def die_once(parameters: Parameters) -> Measurement:
    """Takes its worker with it the first time it is tried, as a machine that is switched off would."""
    tried = Path(str(parameters["folder"])) / f"{parameters['size']}-{parameters['repeat']}"
    if parameters["bad"] and not tried.exists():
        tried.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return spectrum(parameters)


def return_nonsense(parameters: Parameters) -> Measurement:
    return Measurement(({"value": np.int64(3)},))  # type: ignore[dict-item]


def toy(name: str, measure: object) -> Experiment[ToyConfig]:
    presets = {"quick": ToyConfig(), "paper": ToyConfig(sizes=(40, 80, 120), repeats=5)}
    return Experiment(name, name, "nowhere", "Does it run?", presets, cells, measure)  # type: ignore[arg-type]


SPECTRUM = toy("spectrum", spectrum)
RAISES = toy("raises", raise_when_bad)
DIES = toy("dies", die_when_bad)
DIES_ONCE = toy("dies_once", die_once)
NONSENSE = toy("nonsense", return_nonsense)
