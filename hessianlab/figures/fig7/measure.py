"""Figure 7 of the paper: chains of linear attention layers, whose blocks grow with the power 2 3^D."""

from dataclasses import replace

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth

PAPER = GrowthConfig(
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
QUICK = replace(PAPER, d_model=48, sequences=8, points=13, repeats=8, probes=10)

EXPERIMENT = Experiment(
    name="fig7",
    title="Growth in chains of linear attention",
    source="The paper, Figure 7",
    question="Do the blocks of D chained linear attention layers grow with the power 2 3^D of the embedding scale?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
