"""Growth with the scale of the data by depth: linear MLPs against chains of linear attention, over the same scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hessianlab.experiments.checks import check_config
from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import LINEAR_MLP, TRANSFORMER, GrowthConfig, growth_cells, measure_growth
from hessianlab.results import Parameters
from hessianlens.errors import expect


@dataclass(frozen=True)
class DepthConfig:
    """Sizes, seeds and the grid of scales, the same for both families.

    Attributes:
        layers: Depths.
        sigma_low: Smallest scale of the embeddings.
        sigma_high: Largest.
        points: Scales in between, evenly spaced in the logarithm.
        probes: Random vectors a block in attention layers below the last, which is exact.
    """

    layers: tuple[int, ...] = (1, 2, 3)
    d_model: int = 128
    sequences: int = 64
    sigma_low: float = 0.1
    sigma_high: float = 1.0
    points: int = 12
    repeats: int = 10
    probes: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be measured, before the first cell."""
        check_config(self, {"points": 3, "probes": 2})
        ends = f"{self.sigma_low:g} and {self.sigma_high:g}"
        expect(0 < self.sigma_low < self.sigma_high, f"sigma_low, sigma_high: got {ends}, expected 0 < low < high.")

    def families(self) -> tuple[GrowthConfig, GrowthConfig]:
        """The growth experiments of both: linear MLPs; attention without softmax, MLP and skip connections."""

        def growth(model: str) -> GrowthConfig:
            return GrowthConfig(
                model=model,
                layers=self.layers,
                attention="linear",
                residual_scale=0.0,
                mlp=False,
                loss="square",
                d_model=self.d_model,
                sequences=self.sequences,
                sigma_low=self.sigma_low,
                sigma_high=(self.sigma_high,),
                points=self.points,
                repeats=self.repeats,
                probes=self.probes,
                seed=self.seed,
            )

        return growth(LINEAR_MLP), growth(TRANSFORMER)


def cells(config: DepthConfig) -> Sequence[Parameters]:
    """Those of a growth experiment on MLPs, then those of one on attention."""
    return [cell for family in config.families() for cell in growth_cells(family)]


EXPERIMENT = Experiment(
    name="depth_growth",
    title="Growth by depth: linear MLPs against chains of linear attention",
    source="The paper, Section 4.1, Figures 7 and 8",
    question="How does the power with which a block grows with the scale of the data depend on depth: is it 2 for MLPs "
    "of any depth, and 6, 18, 54 for one, two and three chained attention layers?",
    presets={"quick": DepthConfig(d_model=24, sequences=4, points=6, repeats=5), "paper": DepthConfig()},
    cells=cells,
    measure=measure_growth,
)
