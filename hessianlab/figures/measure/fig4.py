"""Figure 4 of the paper: sizes of the entries of the query and value blocks, with softmax and without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.results import Measurement, Parameters
from hessianlens.notation import ACTIVATION_NAMES, CARRIES


@dataclass(frozen=True)
class Fig4Config:
    """Sizes and seeds; one model a kind of attention and repeat, all on the same data."""

    attentions: tuple[str, ...] = ("softmax", "linear")
    d_model: int = 16
    batches: int = 8
    sequences: int = 8
    repeats: int = 20
    seed: int = 0
    data_seed: int = 1234
    carries: str = "none"

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, choices={"attentions": ACTIVATION_NAMES, "carries": CARRIES})


def cells(config: Fig4Config) -> list[dict[str, Any]]:
    """One cell a kind of attention and draw of the weights."""
    shared = {"d_model": config.d_model, "batches": config.batches, "sequences": config.sequences}
    return [
        {"attention": attention, "seed": seed, **shared, "data_seed": config.data_seed, "carries": config.carries}
        for attention in config.attentions
        for seed in range(config.seed, config.seed + config.repeats)
    ]


def measure_cell(parameters: Parameters) -> Measurement:
    """Sizes of the entries of the exact diagonal blocks."""
    from hessianlab.experiments.models import diagonal_blocks, toy_problem

    asked: Any = parameters
    problem = toy_problem(
        asked["d_model"],
        asked["attention"],
        asked["seed"],
        asked["sequences"],
        asked["data_seed"],
        asked["carries"],
        asked["batches"],
    )
    return diagonal_blocks(problem)


EXPERIMENT = Experiment(
    name="fig4",
    title="Entries of the query and value blocks, with softmax and without",
    source="The paper, Figure 4",
    question="Is it softmax that makes the entries of the query block so much smaller than those of the value block?",
    presets={"quick": Fig4Config(repeats=10), "paper": Fig4Config()},
    cells=cells,
    measure=measure_cell,
)
