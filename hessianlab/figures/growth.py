"""Growth with the scale sigma of the token embeddings: Figures 3 and 5 to 8 of the paper, and exponents by depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hessianlab.experiments.experiment import Experiment, check_config
from hessianlab.growth.measure import (
    LINEAR_MLP,
    PRACTICAL,
    SATURATED,
    TRANSFORMER,
    GrowthConfig,
    growth_cells,
    measure_growth,
)
from hessianlab.results import Parameters
from hessianlens.errors import expect


def _figure(
    number: str, title: str, question: str, quick: GrowthConfig, paper: GrowthConfig
) -> Experiment[GrowthConfig]:
    return Experiment(
        name=f"fig{number}",
        title=title,
        source=f"The paper, Figure {number}",
        question=question,
        presets={"quick": quick, "paper": paper},
        cells=growth_cells,
        measure=measure_growth,
    )


FIG3A_PAPER = GrowthConfig()
FIG3A_QUICK = GrowthConfig(d_model=32, sequences=16, points=16, repeats=8)

FIG3A = _figure(
    "3a",
    "Growth of the query and value blocks in one Transformer block",
    "Do the query and value blocks grow with the powers 6 and 5, and 2, of the embedding scale?",
    FIG3A_QUICK,
    FIG3A_PAPER,
)

FIG3B_PAPER = GrowthConfig(norm="pre", fit_ranges=(("small", 0.0, 0.05), ("large", 3.0, 10.0), ("all", 0.0, 10.0)))
"""Small: embeddings far below the attention's output, yet above the norm's epsilon; large: far above it. All: the paper
fits one line to the whole range."""
FIG3B_QUICK = replace(FIG3B_PAPER, d_model=32, sequences=8, repeats=10)

FIG3B = _figure(
    "3b",
    "Growth with layer norm in front",
    "How much of the growth is left when layer norms stand before attention, MLP and unembedding?",
    FIG3B_QUICK,
    FIG3B_PAPER,
)

FIG5_PAPER = GrowthConfig(sigma_low=0.1, sigma_high=(1.0, 10.0), spacing="linear")
FIG5_QUICK = replace(FIG5_PAPER, d_model=32, sequences=16, points=16, repeats=8)

FIG5 = _figure(
    "5",
    "Growth of the query and value blocks on linear axes",
    "Do the predicted powers describe the norms on linear axes, for practical and for large scales?",
    FIG5_QUICK,
    FIG5_PAPER,
)

FIG6_PAPER = GrowthConfig(layers=(2, 3, 4, 5), fit_ranges=(("small", 0.0, 0.1), PRACTICAL, SATURATED))
"""The residual stream grows from block to block, so that scores of the fifth leave the leading power earlier."""
FIG6_QUICK = replace(FIG6_PAPER, layers=(2, 3), d_model=32, sequences=16, points=10, repeats=5, probes=10)

FIG6 = _figure(
    "6",
    "Growth at every layer of deeper Transformers",
    "Do the blocks of every layer of a deep Transformer grow with the powers predicted for a single layer?",
    FIG6_QUICK,
    FIG6_PAPER,
)

FIG7_PAPER = GrowthConfig(
    layers=(1, 2, 3),
    attention="linear",
    residual_scale=0.0,
    mlp=False,
    loss="square",
    sigma_low=0.1,
    sigma_high=(1.0,),
    fit_ranges=(("small", 0.0, 0.3), ("large", 0.55, 1.0), ("all", 0.0, 1.0)),
)
"""Logits are homogeneous in sigma, of degree 3^D. They are small against the targets in the small range, and large in
the large one; they pass the targets near 0.4. At depth three norms reach down to 1e-33."""
FIG7_QUICK = replace(FIG7_PAPER, d_model=48, sequences=8, points=13, repeats=8, probes=10)

FIG7 = _figure(
    "7",
    "Growth in chains of linear attention",
    "Do the blocks of D chained linear attention layers grow with the power 2 3^D of the embedding scale?",
    FIG7_QUICK,
    FIG7_PAPER,
)

FIG8_PAPER = GrowthConfig(model=LINEAR_MLP, layers=(1, 2, 3, 4, 5), loss="square", fit_ranges=(("all", 0.0, 10.0),))
FIG8_QUICK = replace(FIG8_PAPER, d_model=32, sequences=16, points=16, repeats=8)

FIG8 = _figure(
    "8",
    "Growth in linear MLPs",
    "Do the blocks of a linear MLP grow with the power 2 of the embedding scale at every depth?",
    FIG8_QUICK,
    FIG8_PAPER,
)


@dataclass(frozen=True)
class DepthConfig:
    """Sizes, seeds and the grid of scales, the same for both families.

    Attributes:
        layers: Depths.
        sigma_low: Smallest scale of the embeddings.
        sigma_high: Largest.
        points: Scales in between, evenly spaced in the logarithm.
        probes: Probe vectors per block in attention layers below the last, which is exact.
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


def depth_cells(config: DepthConfig) -> Sequence[Parameters]:
    """Those of a growth experiment on MLPs, then those of one on attention."""
    return [cell for family in config.families() for cell in growth_cells(family)]


DEPTH_GROWTH = Experiment(
    name="depth_growth",
    title="Growth by depth: linear MLPs against chains of linear attention",
    source="The paper, Section 4.1, Figures 7 and 8",
    question="How does the power with which a block grows with the scale of the data depend on depth: is it 2 for MLPs "
    "of any depth, and 6, 18, 54 for one, two and three chained attention layers?",
    presets={"quick": DepthConfig(d_model=24, sequences=4, points=6, repeats=5), "paper": DepthConfig()},
    cells=depth_cells,
    measure=measure_growth,
)
