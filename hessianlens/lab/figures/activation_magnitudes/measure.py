"""How large the query, key and value blocks are for every attention activation, at a GPT-2-like initialisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hessianlens.lab.experiments.common.checks import check_config
from hessianlens.lab.experiments.experiment import Experiment
from hessianlens.lab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES, CARRIES
from hessianlens.parts import LAYER_PARTS

WEIGHT_SCALE = 0.8
"""Weights come from N(0, (0.8 / sqrt(d))^2), as in the toy Transformer."""


@dataclass(frozen=True)
class MagnitudesConfig:
    """Sizes and seeds.

    Attributes:
        activations: Names of attention activations.
        places: "transformer" (the one-block model on addition, cross-entropy) and "layer" (alone, one causal sequence
            of tokens as large as the Transformer's, square loss against targets from N(0, 1)).
    """

    activations: tuple[str, ...] = ACTIVATION_NAMES
    places: tuple[str, ...] = ("transformer", "layer")
    d_model: int = 16
    sequences: int = 64
    length: int = 18
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        choices = {"activations": ACTIVATION_NAMES, "places": ("transformer", "layer"), "carries": CARRIES}
        check_config(self, {"length": 2}, choices)


def cells(config: MagnitudesConfig) -> list[dict[str, Any]]:
    """One cell a place, activation and draw."""
    own: dict[str, dict[str, Any]] = {
        "transformer": {"sequences": config.sequences, "data_seed": config.data_seed, "carries": config.carries},
        "layer": {"length": config.length},
    }
    return [
        {"place": place, "activation": activation, "seed": seed, "d_model": config.d_model, **own[place]}
        for place in config.places
        for activation in config.activations
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Median, root mean square and norm of every diagonal block and part."""
    from hessianlens.lab.experiments.common.entries import entry_sizes
    from hessianlens.lab.experiments.common.last_layer import diagonal_blocks
    from hessianlens.lab.experiments.common.layers import lone_layer
    from hessianlens.lab.experiments.common.toy import toy_problem

    asked: Any = parameters
    d = asked["d_model"]
    if asked["place"] == "transformer":
        found = diagonal_blocks(
            toy_problem(d, asked["activation"], asked["seed"], asked["sequences"], asked["data_seed"], asked["carries"])
        )
        return Measurement(found.rows)
    scale = WEIGHT_SCALE / math.sqrt(d)
    H = lone_layer(
        d,
        d,
        asked["length"],
        asked["seed"],
        activation=asked["activation"],
        causal=True,
        weight_scale=WEIGHT_SCALE,
        token_std=math.sqrt(2) * scale,
    ).hessian()
    rows: list[Row] = []
    for name in ("query", "key", "value"):
        letter = name[0].upper()
        for part in LAYER_PARTS:
            matrix = H.part(part)[letter, letter].to_dense()
            rows.append({"block": name, "part": part, **entry_sizes(matrix)})
    return Measurement(tuple(rows))


EXPERIMENT = Experiment(
    name="activation_magnitudes",
    title="Size of the query, key and value blocks by attention activation",
    source="Article on softmax and sigmoid, Figure 2",
    question="Which attention activations make the query and key blocks much smaller than the value block at "
    "initialisation: softmax alone, or others too?",
    presets={"quick": MagnitudesConfig(sequences=32, repeats=8), "paper": MagnitudesConfig()},
    cells=cells,
    measure=measure_cell,
)
