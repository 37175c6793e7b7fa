"""The query-key part: one matrix against two at the same function, its eigenvalues, and its T-outer part's rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessianlab.experiments.experiment import CheckedConfig, Experiment, grid_cells
from hessianlab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES
from hessianlens.parts import LAYER_PARTS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from hessianlab.experiments.models import LoneLayer
    from hessianlens.attention.head import AttentionHead
    from hessianlens.layer import AttentionHessian


@dataclass(frozen=True)
class ParameterisationsConfig(CheckedConfig, least={"length": 2}):
    """Sizes and seeds; `d_ks` are widths of queries and keys."""

    d_model: int = 16
    d_ks: tuple[int, ...] = (4, 8, 16)
    length: int = 32
    repeats: int = 20
    seed: int = 0


def measure_parameterisations(parameters: Parameters) -> Measurement:
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


PARAMETERISATIONS = Experiment(
    name="parameterisations",
    title="One query-key matrix or two, at the same function",
    source="Article on one matrix or two, Figures 1 and 2; the paper, Section 4.2",
    question="How do the curvature, its signs and its conditioning differ between one query-key matrix and two that "
    "compute the same function?",
    presets={
        "quick": ParameterisationsConfig(d_model=8, d_ks=(2, 4, 8), length=16, repeats=20),
        "paper": ParameterisationsConfig(),
    },
    cells=grid_cells(("d_model", "d_k", "length", "seed"), {"d_k": "d_ks"}),
    measure=measure_parameterisations,
)


QUERY_KEY = ["Q", "K"]


@dataclass(frozen=True)
class SpectraConfig(CheckedConfig, least={"length": 2}, choices={"activations": ACTIVATION_NAMES}):
    """Sizes and seeds."""

    activations: tuple[str, ...] = ("softmax", "linear")
    d_model: int = 16
    d_k: int = 8
    length: int = 32
    repeats: int = 20
    seed: int = 0


def measure_spectra(parameters: Parameters) -> Measurement:
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


QUERY_KEY_SPECTRA = Experiment(
    name="query_key_spectra",
    title="Spectra of the query-key part, mirrored at zero",
    source="Article on one matrix or two, Figure 3; the paper, Remark D.1 and Section 4.2",
    question="Where do the negative eigenvalues of the query-key part come from: from the Gauss-Newton matrix, from "
    "the rest, or from having two matrices, which adds plus and minus pairs?",
    presets={
        "quick": SpectraConfig(d_model=8, d_k=4, length=16, repeats=20),
        "paper": SpectraConfig(),
    },
    cells=grid_cells(("activation", "seed", "d_model", "d_k", "length"), {"activation": "activations"}),
    measure=measure_spectra,
)


@dataclass(frozen=True)
class RankConfig(CheckedConfig, least={"lengths": 2}):
    """Sizes and seeds.

    Attributes:
        d_model: Width d_V of the tokens.
        d_ks: Widths of queries and keys.
        lengths: Tokens of a sequence; the bound is reached from d_V + 1 on.
    """

    d_model: int = 16
    d_ks: tuple[int, ...] = (1, 2, 4, 6, 8, 10, 12, 14, 16, 20)
    lengths: tuple[int, ...] = (32, 8)
    repeats: int = 10
    seed: int = 0


def measure_rank(parameters: Parameters) -> Measurement:
    """Ranks from all eigenvalues of the dense matrices, the bound of Lemma D.2 and the exact formula."""
    import torch

    from hessianlab.experiments.models import lone_layer
    from hessianlab.experiments.statistics import spectrum_facts
    from hessianlens.layer import t_outer_rank, t_outer_rank_bound

    asked: Any = parameters
    d, d_k, length = asked["d_model"], asked["d_k"], asked["length"]
    H = lone_layer(d, d_k, length, asked["seed"]).hessian()
    facts = spectrum_facts(torch.linalg.eigvalsh(H.t_outer[:].to_dense()))
    whole = spectrum_facts(torch.linalg.eigvalsh(H.full[QUERY_KEY, QUERY_KEY].to_dense()))
    row: Row = {
        "rank": facts["rank"],
        "bound": t_outer_rank_bound(d, d_k),
        "formula": t_outer_rank(length, d, d_k),
        "parameters": 2 * d * d_k,
        "whole_rank": whole["rank"],
        "smallest_kept": facts["smallest_kept"],
        "largest_dropped": facts["largest_dropped"],
    }
    return Measurement((row,))


RANK_FRACTION = Experiment(
    name="rank_fraction",
    title="Rank of the T-outer-product Hessian",
    source="Article on one matrix or two, Figure 4; the paper, Lemma D.2",
    question="Which share of the query-key parameters has curvature from the T-outer-product Hessian, as the width of "
    "queries and keys changes, and is the bound on its rank reached?",
    presets={
        "quick": RankConfig(d_model=8, d_ks=(1, 2, 3, 4, 5, 6, 7, 8, 10), lengths=(16, 4), repeats=5),
        "paper": RankConfig(),
    },
    cells=grid_cells(("d_model", "d_k", "length", "seed"), {"length": "lengths", "d_k": "d_ks"}),
    measure=measure_rank,
)
