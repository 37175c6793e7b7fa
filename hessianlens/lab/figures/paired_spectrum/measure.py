"""The eigenvalues of the query-key part, split at the scores: plus and minus pairs, and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessianlens.lab.experiments.common.checks import check_config
from hessianlens.lab.experiments.experiment import Experiment
from hessianlens.lab.results import Measurement, Parameters, Row
from hessianlens.notation import ACTIVATION_NAMES

QUERY_KEY = ["Q", "K"]


@dataclass(frozen=True)
class PairedSpectrumConfig:
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


def cells(config: PairedSpectrumConfig) -> list[dict[str, Any]]:
    """One cell an activation and draw."""
    shared = {"d_model": config.d_model, "d_k": config.d_k, "length": config.length}
    return [
        {"activation": activation, "seed": seed, **shared}
        for activation in config.activations
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """All eigenvalues of the T-functional, the T-outer-product and the whole query-key Hessian, from dense matrices.

    Arrays: eigenvalues ``t_functional``, ``t_outer``, ``full``, ascending, and ``closed_form``, those of the
    T-functional part from the singular values of one d x d matrix.
    """
    import torch

    from hessianlens.lab.experiments.common.layers import lone_layer
    from hessianlens.lab.experiments.common.spectra import multiplicity, spectrum_facts
    from hessianlens.theory import eigenvalue_pairs

    asked: Any = parameters
    H = lone_layer(
        asked["d_model"], asked["d_k"], asked["length"], asked["seed"], activation=asked["activation"]
    ).hessian()
    matrices = {"t_functional": H.t_functional, "t_outer": H.t_outer, "full": H.full[QUERY_KEY, QUERY_KEY]}
    spectra = {part: torch.linalg.eigvalsh(grid.to_dense()) for part, grid in matrices.items()}
    pairs = eigenvalue_pairs(H)
    values = spectra["t_functional"]
    largest = float(values.abs().max())
    closed = pairs.eigenvalues()
    rows: list[Row] = [{"part": part, **spectrum_facts(found)} for part, found in spectra.items()]
    rows.append(
        {
            "part": "pairs",
            "rank": pairs.rank,
            "multiplicity": multiplicity(values),
            "predicted_multiplicity": pairs.multiplicity,
            "predicted_nonzero": pairs.nonzero,
            "pairing_gap": float((values + values.flip(0)).abs().max()) / largest,
            "closed_form_gap": float((values - closed).abs().max()) / largest,
        }
    )
    arrays = {**{part: found.numpy() for part, found in spectra.items()}, "closed_form": closed.numpy()}
    return Measurement(tuple(rows), arrays)


EXPERIMENT = Experiment(
    name="paired_spectrum",
    title="Eigenvalues of the query-key part in plus and minus pairs",
    source="Article on one matrix or two, Figure 3; the paper, Remark D.1",
    question="Do the eigenvalues of the T-functional Hessian come in pairs of opposite sign, each d_K times, with "
    "softmax and without, and is the T-outer-product part free of negative ones?",
    presets={
        "quick": PairedSpectrumConfig(d_model=8, d_k=4, length=16, repeats=20),
        "paper": PairedSpectrumConfig(),
    },
    cells=cells,
    measure=measure_cell,
)
