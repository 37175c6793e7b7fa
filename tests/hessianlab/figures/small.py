"""Tiny configurations of every experiment of this part, and their results."""

from __future__ import annotations

from functools import cache
from typing import Any

from hessianlab.experiments.registry import EXPERIMENTS
from hessianlab.figures import activations, block_entries, entropy, powers, query_key, query_key_norm, second_derivative
from hessianlab.results import Result

SMALL: dict[str, Any] = {
    "fig1": block_entries.Fig1Config(d_model=2, sequences=2, map_sequences=2, repeats=2, pixels=40),
    "fig2": second_derivative.Fig2Config(repeats=2),
    "fig4": block_entries.Fig4Config(d_model=2, batches=2, sequences=1, repeats=2),
    "table1": powers.Table1Config(length=5, d_model=3, d_hidden=2, factors=3, repeats=1),
    "activation_offset": activations.OffsetConfig(
        ("softmax", "sigmoid", "linear"), d_model=2, sequences=2, length=4, repeats=2
    ),
    "activation_scales": activations.ScalesConfig(
        ("softmax", "sigmoid", "linear"), d_model=2, sequences=2, points=5, repeats=2
    ),
    "activation_growth": activations.ActivationGrowthConfig(
        ("softmax", "linear", "tanh"), 3, 2, 4, points=9, repeats=2
    ),
    "moment_strata": entropy.StrataConfig(3, 2, 5, points=4, repeats=2),
    "query_key_norm": query_key_norm.QueryKeyNormConfig(3, 2, 4, repeats=2),
    "query_key_spectra": query_key.SpectraConfig(d_model=3, d_k=2, length=6, repeats=2),
    "rank_fraction": query_key.RankConfig(3, (1, 2, 4), (6, 2), repeats=1),
    "temperature_path": entropy.TemperatureConfig(3, 2, 4, points=5, repeats=2),
    "weight_powers": powers.WeightPowersConfig(3, 2, 4, repeats=2),
    "parameterisations": query_key.ParameterisationsConfig(3, (1, 3), 6, repeats=2),
}


@cache
def small_result(name: str) -> Result:
    """The result of a tiny configuration, computed once a test run."""
    return EXPERIMENTS[name].run(SMALL[name])
