"""The rank of the T-outer-product Hessian as a share of the query-key parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters, Row

QUERY_KEY = ["Q", "K"]


@dataclass(frozen=True)
class RankConfig:
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

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"lengths": 2})


def cells(config: RankConfig) -> list[dict[str, Any]]:
    """One cell a width, length and draw."""
    return [
        {"d_model": config.d_model, "d_k": d_k, "length": length, "seed": seed}
        for length in config.lengths
        for d_k in config.d_ks
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
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


EXPERIMENT = Experiment(
    name="rank_fraction",
    title="Rank of the T-outer-product Hessian",
    source="Article on one matrix or two, Figure 4; the paper, Lemma D.2",
    question="Which share of the query-key parameters has curvature from the T-outer-product Hessian, as the width of "
    "queries and keys changes, and is the bound on its rank reached?",
    presets={
        "quick": RankConfig(d_model=8, d_ks=(1, 2, 3, 4, 5, 6, 7, 8, 10), lengths=(16, 4), repeats=5),
        "paper": RankConfig(),
    },
    cells=cells,
    measure=measure_cell,
)
