"""The attention activations compared: sizes of the blocks at initialisation, and their growth with the token scale.

What an activation gives a score of zero, a(0), is measured beside the blocks: 1 / L with softmax, 1/2 with a sigmoid, 0
with none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES, CARRIES
from hessianlens.parts import LAYER_PARTS

WEIGHT_SCALE = 0.8
"""Weights come from N(0, (0.8 / sqrt(d))^2), as in the toy Transformer."""

TOKENS = 18
"""Of the addition task's sequences."""


PLACES = ("transformer", "layer")


@dataclass(frozen=True)
class OffsetConfig(
    CheckedConfig,
    least={"length": 2},
    choices={"activations": ACTIVATION_NAMES, "places": PLACES, "carries": CARRIES},
):
    """Sizes and seeds.

    Attributes:
        activations: Names of attention activations.
        places: "transformer" (the one-block model on addition, cross-entropy) and "layer" (alone, one causal sequence
            of tokens as large as the Transformer's, square loss against targets from N(0, 1)).
        length: Tokens of the lone layer's sequence.
    """

    activations: tuple[str, ...] = ACTIVATION_NAMES
    places: tuple[str, ...] = PLACES
    d_model: int = 16
    sequences: int = 64
    length: int = TOKENS
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"


def offset_cells(config: OffsetConfig) -> list[dict[str, Any]]:
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


def measure_offset(parameters: Parameters) -> Measurement:
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
    from hessianlens.layer.predicted_exponents import activation_powers

    powers = activation_powers(activation)
    if powers.jacobian is not None and powers.jacobian < 0:
        return None
    row = torch.zeros(1, 1, TOKENS, dtype=torch.float64)
    return float(as_activation(activation).value(row, torch.ones_like(row, dtype=torch.bool))[0, 0, 0])


def _transformer(asked: Any) -> Sequence[Row]:
    from hessianlab.experiments.models import diagonal_blocks, toy_problem

    data = asked["sequences"], asked["data_seed"], asked["carries"]
    return diagonal_blocks(toy_problem(asked["d_model"], asked["activation"], asked["seed"], *data)).rows


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


ACTIVATION_OFFSET = Experiment(
    name="activation_offset",
    title="The same weights under every attention activation",
    source="Article on softmax and sigmoid, Figure 2",
    question="Is it softmax that makes the query block so much smaller than the value block at initialisation, or any "
    "activation that is not zero at a score of zero?",
    presets={"quick": OffsetConfig(sequences=16, repeats=6), "paper": OffsetConfig()},
    cells=offset_cells,
    measure=measure_offset,
)


@dataclass(frozen=True)
class ScalesConfig(CheckedConfig, least={"points": 3}, choices={"activations": ACTIVATION_NAMES, "carries": CARRIES}):
    """Sizes, seeds and the grid of scales.

    Attributes:
        activations: Names of attention activations.
        low: Power of ten of the smallest scale, relative to that at initialisation.
        high: Power of ten of the largest.
        points: Scales in between, evenly spaced in the logarithm; the initialisation is always one of them.
    """

    activations: tuple[str, ...] = ("softmax", "sigmoid", "tanh", "linear")
    d_model: int = 16
    sequences: int = 64
    low: float = -1.0
    high: float = 1.0
    points: int = 17
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"


def scale_factors(low: float, high: float, points: int) -> tuple[float, ...]:
    """Factors of the initial scale, even in the logarithm; the one nearest to it is moved onto it.

    >>> [round(factor, 2) for factor in scale_factors(-1.0, 1.0, 5)], scale_factors(-1.0, 0.8, 3)[1]
    ([0.1, 0.32, 1.0, 3.16, 10.0], 1.0)
    """
    import numpy as np

    powers = np.linspace(low, high, points)
    powers[np.abs(powers).argmin()] = 0.0
    return tuple(float(factor) for factor in 10**powers)


def measure_scales(parameters: Parameters) -> Measurement:
    """Norms of the query, key and value blocks with the embeddings of one network at every scale.

    A factor of 1 is the network of `measure_offset` with the same weights; rows have the standard deviation ``sigma``.
    """
    from hessianlab.experiments.models import diagonal_norms, toy_problem

    asked: Any = parameters
    initial, start = WEIGHT_SCALE / math.sqrt(asked["d_model"]), weight_at_zero(asked["activation"])
    data = asked["sequences"], asked["data_seed"], asked["carries"]
    rows: list[Row] = []
    for factor in scale_factors(asked["low"], asked["high"], asked["points"]):
        problem = toy_problem(
            asked["d_model"], asked["activation"], asked["seed"], *data, embedding_std=factor * initial
        )
        own: Row = {"factor": factor, "sigma": factor * initial, "at_zero": start}
        rows += [{**own, "block": block, "part": "full", "norm": n} for block, n in diagonal_norms(problem).items()]
    return Measurement(tuple(rows))


ACTIVATION_SCALES = Experiment(
    name="activation_scales",
    title="Value over query against the scale of the tokens",
    source="Article on softmax and sigmoid, The root of the heterogeneity",
    question="How many times larger than the query block is the value block, from small embeddings to large ones, with "
    "softmax and with other activations in its place?",
    presets={"quick": ScalesConfig(sequences=16, points=9, repeats=6), "paper": ScalesConfig()},
    cells=grid_cells(
        ("activation", "seed", "d_model", "sequences", "data_seed", "carries", "low", "high", "points"),
        {"activation": "activations"},
    ),
    measure=measure_scales,
)


GROWTH_BLOCKS = (("Q", "Q"), ("Q", "K"), ("V", "Q"), ("V", "V"))
GROWTH_PARTS = ("outer", "functional")


@dataclass(frozen=True)
class ActivationGrowthConfig(
    CheckedConfig, least={"length": 3, "points": 3}, choices={"activations": ACTIVATION_NAMES}
):
    """Sizes, seeds and the grid of scales.

    Attributes:
        low: Power of ten of the smallest token scale.
        high: Power of ten of the largest.
        points: Scales in between, evenly spaced in the logarithm.
        largest_score: Exponents are fitted up to the scale at which no score exceeds this.
    """

    activations: tuple[str, ...] = ACTIVATION_NAMES
    d_model: int = 8
    d_k: int = 4
    length: int = 10
    low: float = -3.0
    high: float = 0.5
    points: int = 22
    largest_score: float = 0.01
    repeats: int = 20
    seed: int = 0


def measure_activation_growth(parameters: Parameters) -> Measurement:
    """Norms of sigma X with weights, loss gradient and loss curvature held, and the slope in the fitted range.

    Arrays: ``sigmas``; ``norms``, one line per row of the table; ``fitted``, whether a scale lies in the fitted range.
    """
    import numpy as np
    import torch

    from hessianlab.experiments.models import lone_layer
    from hessianlab.experiments.statistics import log_log_slope
    from hessianlens.layer import attention_hessian, predicted_growth

    asked: Any = parameters
    setting = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"], activation=asked["activation"])
    gradient = 2 / setting.Y.numel() * setting.Y
    sigmas = 10 ** np.linspace(asked["low"], asked["high"], asked["points"])
    hessians = [
        attention_hessian(setting.layer, s * setting.X, grad=gradient, curvature=2 / setting.Y.numel()) for s in sigmas
    ]
    with torch.no_grad():
        scores = float(setting.layer.attend(setting.X[None]).scores.abs().max())
    fitted = sigmas**2 * scores <= asked["largest_score"]
    rows: list[Row] = []
    norms = []
    for part in GROWTH_PARTS:
        for row, column in GROWTH_BLOCKS:
            found = np.array([float(H.part(part)[row, column].frobenius_norm()) for H in hessians])
            predicted = predicted_growth(asked["activation"], part, row, column)
            rows.append(
                {
                    "part": part,
                    "block": row + column,
                    "exponent": log_log_slope(sigmas[fitted], found[fitted]),
                    "predicted": predicted,
                }
            )
            norms.append(found)
    return Measurement(tuple(rows), {"sigmas": sigmas, "norms": np.array(norms), "fitted": fitted})


ACTIVATION_GROWTH = Experiment(
    name="activation_growth",
    title="Growth of the blocks with the token scale, by attention activation",
    source="Article on softmax and sigmoid, Figure 3; the paper, Equation 5",
    question="With which power of the token scale does each block grow for each attention activation, and does the "
    "activation near zero predict it?",
    presets={
        "quick": ActivationGrowthConfig(points=15, repeats=8),
        "paper": ActivationGrowthConfig(d_model=16, d_k=8, length=18),
    },
    cells=grid_cells(
        ("activation", "seed", "d_model", "d_k", "length", "low", "high", "points", "largest_score"),
        {"activation": "activations"},
    ),
    measure=measure_activation_growth,
)
