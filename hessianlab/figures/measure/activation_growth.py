"""How every block grows with the scale of the tokens, by attention activation, against the predicted exponent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES

BLOCKS = (("Q", "Q"), ("Q", "K"), ("V", "Q"), ("V", "V"))
PARTS = ("outer", "functional")


@dataclass(frozen=True)
class ActivationGrowthConfig:
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

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 3, "points": 3}, {"activations": ACTIVATION_NAMES})


def cells(config: ActivationGrowthConfig) -> list[dict[str, Any]]:
    """One cell an activation and draw, over all scales."""
    names = ("d_model", "d_k", "length", "low", "high", "points", "largest_score")
    shared = {name: getattr(config, name) for name in names}
    return [
        {"activation": activation, "seed": seed, **shared}
        for activation in config.activations
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Norms of sigma X with weights, loss gradient and loss curvature held, and the slope in the fitted range.

    Arrays: ``sigmas``; ``norms``, one line a row of the table; ``fitted``, whether a scale lies in the fitted range.
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
    for part in PARTS:
        for row, column in BLOCKS:
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


EXPERIMENT = Experiment(
    name="activation_growth",
    title="Growth of the blocks with the token scale, by attention activation",
    source="Article on softmax and sigmoid, Figure 3; the paper, Equation 5",
    question="With which power of the token scale does each block grow for each attention activation, and does the "
    "activation near zero predict it?",
    presets={
        "quick": ActivationGrowthConfig(points=15, repeats=8),
        "paper": ActivationGrowthConfig(d_model=16, d_k=8, length=18),
    },
    cells=cells,
    measure=measure_cell,
)
