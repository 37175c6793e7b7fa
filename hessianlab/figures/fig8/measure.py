"""Figure 8 of the paper: linear MLPs, whose blocks grow quadratically at every depth."""

from dataclasses import replace

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth
from hessianlab.growth.measure.config import LINEAR_MLP

PAPER = GrowthConfig(model=LINEAR_MLP, layers=(1, 2, 3, 4, 5), loss="square", fit_ranges=(("all", 0.0, 10.0),))
QUICK = replace(PAPER, d_model=32, sequences=16, points=16, repeats=8)

EXPERIMENT = Experiment(
    name="fig8",
    title="Growth in linear MLPs",
    source="The paper, Figure 8",
    question="Do the blocks of a linear MLP grow with the power 2 of the embedding scale at every depth?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
