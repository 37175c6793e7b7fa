"""Growth results with known exponents, without a model behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from hessianlab.growth.measure import GrowthConfig, growth_cells
from hessianlab.results import FinishedCell, Measurement, Result, collect


def synthetic(
    config: GrowthConfig,
    norm: Callable[[float, int], float],
    *,
    experiment: str = "fig3a",
    series: tuple[tuple[int, str, str], ...] = ((0, "query", "outer"),),
) -> Result:
    """A result whose norms are `norm(sigma, repeat)` in every (layer, block, part) of `series`."""
    cells = []
    for parameters in growth_cells(config):
        value = norm(parameters["sigma"], parameters["repeat"])
        rows = tuple(
            {"layer": layer, "block": block, "part": part, "value": value, "stderr": 0.0, "method": "closed form"}
            for layer, block, part in series
        )
        cells.append(FinishedCell(parameters, Measurement(rows), 0.0))
    return Result(experiment, "custom", dataclasses.asdict(config), tuple(cells), collect())


def noisy_power(exponent: float, noise: float, seed: int) -> Callable[[float, int], float]:
    """``3 sigma^exponent`` times log-normal noise, drawn anew at every call."""
    source = np.random.default_rng(seed)
    return lambda sigma, repeat: float(3 * sigma**exponent * np.exp(noise * source.standard_normal()))
