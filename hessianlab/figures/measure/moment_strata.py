"""Attention moments and the blocks that depend on them, as attention goes from uniform to one-hot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer

BLOCKS = {
    ("outer", "VV"): "M1",
    ("outer", "QQ"): "M2",
    ("functional", "QQ"): "M3",
}
"""Blocks that are functions of one attention moment (and of weights, tokens and loss)."""


@dataclass(frozen=True)
class StrataConfig:
    """Sizes, seeds and the factors on the query weights, powers of ten from `low` to `high`."""

    d_model: int = 8
    d_k: int = 8
    length: int = 12
    low: float = -1.5
    high: float = 2.5
    points: int = 25
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 2, "points": 2})


def cells(config: StrataConfig) -> list[dict[str, Any]]:
    """One cell a factor and draw."""
    import numpy as np

    factors = 10 ** np.linspace(config.low, config.high, config.points)
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"factor": float(factor), "seed": seed, **shared}
        for seed in range(config.seed, config.seed + config.repeats)
        for factor in factors
    ]


def measure_cell(parameters: Parameters) -> Measurement:
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
    # The query blocks vanish in one-hot attention, so gaps are told against the whole matrix.
    whole = H.full[:].frobenius_norm()
    entropy = float(attention_entropy(A).mean())
    rows: list[Row] = [
        {"quantity": "entropy", "value": entropy, "share_of_uniform": entropy / math.log(asked["length"])}
    ]
    rows += [{"quantity": name, "value": float(moment.norm())} for name, moment in moments.items()]
    for (part, name), moment in BLOCKS.items():
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


EXPERIMENT = Experiment(
    name="moment_strata",
    title="Attention moments and the blocks built on them, from uniform to one-hot attention",
    source="Article on softmax and sigmoid, Figure 4; the paper, Definition 3.1",
    question="Does the value block see the first attention moment, the query block the second and third, and do those "
    "two fade as attention becomes one-hot?",
    presets={"quick": StrataConfig(points=21, repeats=8), "paper": StrataConfig(d_model=16, d_k=16, length=18)},
    cells=cells,
    measure=measure_cell,
)
