"""Figure 5 of the paper: Figure 3a on linear axes, for sigma up to 1 and up to 10."""

from dataclasses import replace

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth

PAPER = GrowthConfig(sigma_low=0.1, sigma_high=(1.0, 10.0), spacing="linear")
QUICK = replace(PAPER, d_model=32, sequences=16, points=16, repeats=8)

EXPERIMENT = Experiment(
    name="fig5",
    title="Growth of the query and value blocks on linear axes",
    source="The paper, Figure 5",
    question="Do the predicted powers describe the norms on linear axes, for practical and for large scales?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
