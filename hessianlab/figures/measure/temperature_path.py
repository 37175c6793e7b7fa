"""One attention layer from uniform to one-hot attention, by the temperature that divides its scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

BLOCKS = (("outer", "VV"), ("outer", "QQ"), ("functional", "QQ"), ("full", "QQ"))
"""Parts and blocks that are measured; the functional value block is identically zero."""


@dataclass(frozen=True)
class TemperatureConfig:
    """Sizes, seeds and the grid of temperatures.

    Attributes:
        low: Power of ten of the lowest temperature.
        high: Power of ten of the highest.
        points: Temperatures in between, evenly spaced in the logarithm.
    """

    d_model: int = 8
    d_k: int = 8
    length: int = 8
    low: float = -3.0
    high: float = 1.0
    points: int = 33
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 2, "points": 2})


def cells(config: TemperatureConfig) -> list[dict[str, Any]]:
    """One cell a draw and temperature, the highest temperature first."""
    import numpy as np

    temperatures = 10 ** np.linspace(config.high, config.low, config.points)
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"temperature": float(t), "seed": seed, **shared}
        for seed in range(config.seed, config.seed + config.repeats)
        for t in temperatures
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Entropy, the norm of the softmax derivative and of the blocks; softmax rows in the mean over rows.

    The derivative of row i of the attention matrix A = softmax(T / t) by its scores before division is
    ``(diag(A_i) - A_i A_i^T) / t``; told is the norm of ``diag(A_i) - A_i A_i^T``, without the factor.

    Arrays: ``attention``, the matrix A; ``derivative``, that of its first row, without the factor 1 / t.
    """
    from dataclasses import replace

    import torch

    from hessianlab.experiments.models import LoneLayer, lone_layer
    from hessianlens.attention import attention_entropy

    asked: Any = parameters
    drawn = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"])
    layer = replace(drawn.layer, temperature=asked["temperature"])
    H = LoneLayer(layer, drawn.X, drawn.Y).hessian()
    A = H.heads[0].weights[0]
    derivative = torch.diag_embed(A) - A[:, :, None] * A[:, None, :]
    entropy = float(attention_entropy(A).mean())
    rows: list[Row] = [
        {"quantity": "entropy", "value": entropy, "share_of_uniform": entropy / math.log(asked["length"])},
        {"quantity": "derivative", "value": float(derivative.norm(dim=(1, 2)).mean())},
    ]
    for part, block in BLOCKS:
        norm = float(H.part(part)[block[0], block[1]].frobenius_norm())
        rows.append({"quantity": f"{part} {block}", "value": norm})
    return Measurement(tuple(rows), {"attention": A.numpy(), "derivative": derivative[0].numpy()})


EXPERIMENT = Experiment(
    name="temperature_path",
    title="From uniform to one-hot attention by temperature",
    source="Article on softmax and sigmoid; the paper, Section 4.3",
    question="What happens to attention, to the derivative of softmax and to the blocks of the Hessian between a high "
    "temperature, where attention is uniform, and a low one, where it looks at one token?",
    presets={
        "quick": TemperatureConfig(repeats=12),
        "paper": TemperatureConfig(d_model=16, d_k=16, length=12, points=65),
    },
    cells=cells,
    measure=measure_cell,
)
