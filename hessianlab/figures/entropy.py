"""From uniform to one-hot attention: moments, the derivative of softmax, and the blocks that depend on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer


MOMENT_BLOCKS = {
    ("outer", "VV"): "M1",
    ("outer", "QQ"): "M2",
    ("functional", "QQ"): "M3",
}
"""Blocks that are functions of one attention moment (and of weights, tokens and loss)."""


@dataclass(frozen=True)
class StrataConfig(CheckedConfig, least={"length": 2, "points": 2}):
    """Sizes, seeds and the factors on the query weights, powers of ten from `low` to `high`."""

    d_model: int = 8
    d_k: int = 8
    length: int = 12
    low: float = -1.5
    high: float = 2.5
    points: int = 25
    repeats: int = 20
    seed: int = 0


def strata_cells(config: StrataConfig) -> list[dict[str, Any]]:
    """One cell a factor and draw."""
    import numpy as np

    factors = 10 ** np.linspace(config.low, config.high, config.points)
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"factor": float(factor), "seed": seed, **shared}
        for seed in range(config.seed, config.seed + config.repeats)
        for factor in factors
    ]


def measure_strata(parameters: Parameters) -> Measurement:
    """Entropy, norms of the moments and of the blocks, and how well moments alone rebuild each block."""
    from hessianlab.experiments.models import LoneLayer, lone_layer
    from hessianlens.attention import attention_entropy, first_moment, second_moment, third_moment_along

    asked: Any = parameters
    drawn = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"])
    layer = drawn.layer.with_parameters({"Q": asked["factor"] * drawn.layer.W_Q})
    setting = LoneLayer(layer, drawn.X, drawn.Y)
    H = setting.hessian()
    A, g = H.heads[0].weights[0], H.loss.gradient[0]
    moments = {
        "M1": first_moment(A, setting.X),
        "M2": second_moment(A, setting.X),
        "M3": third_moment_along(A, setting.X, g @ layer.W_V.T),
    }
    # The query blocks vanish in one-hot attention, so gaps are relative to the whole matrix.
    whole = H.full[:].frobenius_norm()
    entropy = float(attention_entropy(A).mean())
    rows: list[Row] = [
        {"quantity": "entropy", "value": entropy, "share_of_uniform": entropy / math.log(asked["length"])}
    ]
    rows += [{"quantity": name, "value": float(moment.norm())} for name, moment in moments.items()]
    for (part, name), moment in MOMENT_BLOCKS.items():
        block = H.part(part)[name[0], name[1]].to_dense()
        rebuilt = rebuild(setting, moment, moments[moment])
        rows.append(
            {
                "quantity": f"{part} {name}",
                "value": float(block.norm()),
                "moment": moment,
                "gap": float((rebuilt - block).norm() / whole),
            }
        )
    return Measurement(tuple(rows))


def rebuild(setting: LoneLayer, name: str, moment: Tensor) -> Tensor:
    """A block from one moment: outer VV from M1, outer QQ from M2, functional QQ from M3 along the loss gradient."""
    import torch
    from torch import einsum

    layer, X = setting.layer, setting.X
    factor, scale = 2 / setting.Y.numel(), math.sqrt(layer.d_k)
    if name == "M1":
        return factor * torch.kron(moment.T @ moment, torch.eye(layer.d_v, dtype=X.dtype))
    if name == "M2":
        S = einsum("av,iab,bk->ivk", layer.W_V, moment, layer.W_K) / scale
        inner = factor * einsum("ivk,ivl->ikl", S, S)
    else:
        inner = einsum("ak,iab,bl->ikl", layer.W_K, moment, layer.W_K) / scale**2
    size = layer.W_Q.numel()
    return einsum("ia,ikl,ib->akbl", X, inner, X).reshape(size, size)


MOMENT_STRATA = Experiment(
    name="moment_strata",
    title="Attention moments and the blocks built on them, from uniform to one-hot attention",
    source="Article on softmax and sigmoid, Figure 4; the paper, Definition 3.1",
    question="Does the value block see the first attention moment, the query block the second and third, and do those "
    "two fade as attention becomes one-hot?",
    presets={"quick": StrataConfig(points=21, repeats=8), "paper": StrataConfig(d_model=16, d_k=16, length=18)},
    cells=strata_cells,
    measure=measure_strata,
)


PATH_BLOCKS = (("outer", "VV"), ("outer", "QQ"), ("functional", "QQ"), ("full", "QQ"))
"""Parts and blocks that are measured; the functional value block is identically zero."""


@dataclass(frozen=True)
class TemperatureConfig(CheckedConfig, least={"length": 2, "points": 2}):
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


def path_cells(config: TemperatureConfig) -> list[dict[str, Any]]:
    """One cell a draw and temperature, the highest temperature first."""
    import numpy as np

    temperatures = 10 ** np.linspace(config.high, config.low, config.points)
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"temperature": float(t), "seed": seed, **shared}
        for seed in range(config.seed, config.seed + config.repeats)
        for t in temperatures
    ]


def measure_path(parameters: Parameters) -> Measurement:
    """Entropy, the norm of the softmax derivative and of the blocks; softmax rows in the mean over rows.

    The derivative of row i of the attention matrix A = softmax(T / t) by its scores before division is
    ``(diag(A_i) - A_i A_i^T) / t``; measured is the norm of ``diag(A_i) - A_i A_i^T``, without the factor.

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
    for part, block in PATH_BLOCKS:
        norm = float(H.part(part)[block[0], block[1]].frobenius_norm())
        rows.append({"quantity": f"{part} {block}", "value": norm})
    return Measurement(tuple(rows), {"attention": A.numpy(), "derivative": derivative[0].numpy()})


TEMPERATURE_PATH = Experiment(
    name="temperature_path",
    title="From uniform to one-hot attention by temperature",
    source="Article on softmax and sigmoid; the paper, Section 4.3",
    question="What happens to attention, to the derivative of softmax and to the blocks of the Hessian between a high "
    "temperature, where attention is uniform, and a low one, where it looks at one token?",
    presets={
        "quick": TemperatureConfig(repeats=12),
        "paper": TemperatureConfig(d_model=16, d_k=16, length=12, points=65),
    },
    cells=path_cells,
    measure=measure_path,
)
