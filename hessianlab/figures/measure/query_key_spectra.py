"""The eigenvalues of the query-key part: Gauss-Newton, the rest and the whole, with two matrices and with one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES
from hessianlens.parts import LAYER_PARTS

if TYPE_CHECKING:
    from torch import Tensor

    from hessianlens.layer import AttentionHessian

QUERY_KEY = ["Q", "K"]


@dataclass(frozen=True)
class SpectraConfig:
    """Sizes and seeds."""

    activations: tuple[str, ...] = ("softmax", "linear")
    d_model: int = 16
    d_k: int = 8
    length: int = 32
    repeats: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"length": 2}, {"activations": ACTIVATION_NAMES})


def cells(config: SpectraConfig) -> list[dict[str, Any]]:
    """One cell an activation and draw."""
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"activation": activation, "seed": seed, **shared}
        for activation in config.activations
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """All eigenvalues from dense matrices, at the same function.

    With ``W_Q`` and ``W_K`` (two) the query-key part of H_o, H_f and H, and H split at the scores; with
    ``W_QK = W_Q W_K^T / sqrt(d_K)`` (one) H_o, H_f and H. ``balance`` is the sum of the eigenvalues over that of their
    absolute values: 0 if each has its mirror image, 1 if none is negative.

    Arrays: eigenvalues, ascending, as ``two outer``, ``one full``, ...; ``closed form`` has those of the T-functional
    part from the singular values of one d x d matrix.
    """
    import torch

    from hessianlab.experiments.models import lone_layer
    from hessianlab.experiments.statistics import spectrum_facts
    from hessianlens.attention import SingleMatrixAttention
    from hessianlens.layer import attention_hessian, eigenvalue_pairs

    asked: Any = parameters
    setting = lone_layer(asked["d_model"], asked["d_k"], asked["length"], asked["seed"], activation=asked["activation"])
    layer = setting.layer
    single = SingleMatrixAttention(
        layer.W_Q @ layer.W_K.T / math.sqrt(layer.d_k), layer.W_V, activation=asked["activation"]
    )
    H, merged = setting.hessian(), attention_hessian(single, setting.X, setting.loss)
    matrices = {("two", part): H.part(part)[QUERY_KEY, QUERY_KEY].to_dense() for part in LAYER_PARTS}
    matrices |= {("two", "t_outer"): H.t_outer[:].to_dense(), ("two", "t_functional"): H.t_functional[:].to_dense()}
    matrices |= {("one", part): merged.part(part)["QK", "QK"].to_dense() for part in LAYER_PARTS}
    spectra = {key: torch.linalg.eigvalsh(matrix) for key, matrix in matrices.items()}
    rows: list[Row] = [
        {"matrices": count, "part": part, "balance": _balance(found), **spectrum_facts(found)}
        for (count, part), found in spectra.items()
    ]
    rows.append({"matrices": "two", "part": "pairs", **_pairs(H, spectra["two", "t_functional"])})
    arrays = {" ".join(key): found.numpy() for key, found in spectra.items()}
    return Measurement(tuple(rows), {**arrays, "closed form": eigenvalue_pairs(H).eigenvalues().numpy()})


def _balance(values: Tensor) -> float | None:
    total = float(values.abs().sum())
    return float(values.sum()) / total if total else None


def _pairs(H: AttentionHessian, values: Tensor) -> Row:
    """How the eigenvalues of the T-functional part pair up, against the closed form."""
    from hessianlab.experiments.statistics import multiplicity
    from hessianlens.layer import eigenvalue_pairs

    pairs = eigenvalue_pairs(H)
    largest = float(values.abs().max())
    return {
        "rank": pairs.rank,
        "multiplicity": multiplicity(values),
        "predicted_multiplicity": pairs.multiplicity,
        "predicted_nonzero": pairs.nonzero,
        "pairing_gap": float((values + values.flip(0)).abs().max()) / largest,
        "closed_form_gap": float((values - pairs.eigenvalues()).abs().max()) / largest,
    }


EXPERIMENT = Experiment(
    name="query_key_spectra",
    title="Spectra of the query-key part, mirrored at zero",
    source="Article on one matrix or two, Figure 3; the paper, Remark D.1 and Section 4.2",
    question="Where do the negative eigenvalues of the query-key part come from: from the Gauss-Newton matrix, from "
    "the rest, or from having two matrices, which adds plus and minus pairs?",
    presets={
        "quick": SpectraConfig(d_model=8, d_k=4, length=16, repeats=20),
        "paper": SpectraConfig(),
    },
    cells=cells,
    measure=measure_cell,
)
