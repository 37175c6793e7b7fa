"""The blocks of the same weights and data under every attention activation, at a GPT-2-like initialisation.

What an activation gives a score of zero, a(0), is measured beside the blocks: 1 / L with softmax, 1/2 with a sigmoid, 0
with none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES, CARRIES
from hessianlens.parts import LAYER_PARTS

WEIGHT_SCALE = 0.8
"""Weights come from N(0, (0.8 / sqrt(d))^2), as in the toy Transformer."""

TOKENS = 18
"""Of the addition task's sequences."""


@dataclass(frozen=True)
class OffsetConfig:
    """Sizes and seeds.

    Attributes:
        activations: Names of attention activations.
        places: "transformer" (the one-block model on addition, cross-entropy) and "layer" (alone, one causal sequence
            of tokens as large as the Transformer's, square loss against targets from N(0, 1)).
        length: Tokens of the lone layer's sequence.
    """

    activations: tuple[str, ...] = ACTIVATION_NAMES
    places: tuple[str, ...] = ("transformer", "layer")
    d_model: int = 16
    sequences: int = 64
    length: int = TOKENS
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        choices = {"activations": ACTIVATION_NAMES, "places": ("transformer", "layer"), "carries": CARRIES}
        check_config(self, {"length": 2}, choices)


def cells(config: OffsetConfig) -> list[dict[str, Any]]:
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
    """Median, root mean square and norm of every diagonal block and part, and the activation's weight at zero."""
    asked: Any = parameters
    rows = _transformer(asked) if asked["place"] == "transformer" else _layer(asked)
    start = weight_at_zero(asked["activation"])
    return Measurement(tuple({**row, "at_zero": start} for row in rows))


def weight_at_zero(activation: str) -> float | None:
    """a(0): what a row of 18 scores of zero gives each token; None where there is no limit as scores go to zero.

    Rows that are divided by their own sum keep their weights however small the scores are, and have none.

    >>> [round(weight_at_zero(name), 3) for name in ("softmax", "sigmoid", "exp", "tanh")]
    [0.056, 0.5, 1.0, 0.0]
    >>> weight_at_zero("relu_normalised")
    """
    import torch

    from hessianlens.attention.activations import as_activation
    from hessianlens.layer.growth import activation_powers

    powers = activation_powers(activation)
    if powers.jacobian is not None and powers.jacobian < 0:
        return None
    row = torch.zeros(1, 1, TOKENS, dtype=torch.float64)
    return float(as_activation(activation).value(row, torch.ones_like(row, dtype=torch.bool))[0, 0, 0])


def _transformer(asked: Any) -> Sequence[Row]:
    from hessianlab.experiments.models import diagonal_blocks, toy_problem

    problem = toy_problem(
        asked["d_model"],
        asked["activation"],
        asked["seed"],
        asked["sequences"],
        asked["data_seed"],
        asked["carries"],
    )
    return diagonal_blocks(problem).rows


def _layer(asked: Any) -> Sequence[Row]:
    from hessianlab.experiments.models import lone_layer
    from hessianlab.experiments.statistics import entry_sizes

    d = asked["d_model"]
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
    return rows


EXPERIMENT = Experiment(
    name="activation_offset",
    title="The same weights under every attention activation",
    source="Article on softmax and sigmoid, Figure 2",
    question="Is it softmax that makes the query block so much smaller than the value block at initialisation, or any "
    "activation that is not zero at a score of zero?",
    presets={"quick": OffsetConfig(sequences=16, repeats=6), "paper": OffsetConfig()},
    cells=cells,
    measure=measure_cell,
)
