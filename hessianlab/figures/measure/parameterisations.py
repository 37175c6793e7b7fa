"""One query-key matrix against two, at the same function."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

if TYPE_CHECKING:
    import numpy as np

    from hessianlab.experiments.models import LoneLayer
    from hessianlens.attention.layer import AttentionHead


@dataclass(frozen=True)
class ParameterisationsConfig:
    """Sizes and seeds; `d_ks` are widths of queries and keys."""

    d_model: int = 16
    d_ks: tuple[int, ...] = (4, 8, 16)
    length: int = 32
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 2})


def cells(config: ParameterisationsConfig) -> list[dict[str, Any]]:
    """One cell a width and draw."""
    return [
        {"d_model": config.d_model, "d_k": d_k, "length": config.length, "seed": seed}
        for d_k in config.d_ks
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Spectra of the query-key Hessian of ``W_Q, W_K`` and of ``W_QK = W_Q W_K^T / sqrt(d_K)``, and the outputs' gap.

    Arrays: eigenvalues of the full query-key Hessian, ascending, as ``dual`` and ``single``.
    """
    import torch

    from hessianlab.experiments.models import lone_layer
    from hessianlab.experiments.statistics import spectrum_facts
    from hessianlens.attention import SingleMatrixAttention
    from hessianlens.layer import attention_hessian

    asked: Any = parameters
    setting = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"])
    dual = setting.layer
    single = SingleMatrixAttention(dual.W_Q @ dual.W_K.T / math.sqrt(dual.d_k), dual.W_V)
    gap = float((dual(setting.X) - single(setting.X)).abs().max())
    rows: list[Row] = []
    arrays: dict[str, np.ndarray] = {}
    layers: dict[str, tuple[AttentionHead, list[str]]] = {"dual": (dual, ["Q", "K"]), "single": (single, ["QK"])}
    for name, (layer, blocks) in layers.items():
        H = attention_hessian(layer, setting.X, setting.loss)
        slope = _gradient_norm(layer, blocks, setting)
        for part in ("outer", "functional", "full"):
            values = torch.linalg.eigvalsh(H.part(part)[blocks, blocks].to_dense())
            rows.append(
                {"parameters": name, "part": part, "output_gap": gap, "gradient": slope, **spectrum_facts(values)}
            )
            if part == "full":
                arrays[name] = values.numpy()
    return Measurement(tuple(rows), arrays)


def _gradient_norm(layer: AttentionHead, names: list[str], setting: LoneLayer) -> float:
    """Norm of the loss gradient with respect to the query-key weights."""
    import torch

    weights = {name: layer.parameters[name].clone().requires_grad_() for name in names}
    loss = setting.loss.value(layer.with_parameters(weights)(setting.X[None]))
    found = torch.autograd.grad(loss, list(weights.values()))
    return math.sqrt(sum(float(g.square().sum()) for g in found))


EXPERIMENT = Experiment(
    name="parameterisations",
    title="One query-key matrix or two, at the same function",
    source="Article on one matrix or two, Figures 1 and 2; the paper, Section 4.2",
    question="How do the curvature, its signs and its conditioning differ between one query-key matrix and two that "
    "compute the same function?",
    presets={
        "quick": ParameterisationsConfig(d_model=8, d_ks=(2, 4, 8), length=16, repeats=20),
        "paper": ParameterisationsConfig(),
    },
    cells=cells,
    measure=measure_cell,
)
