"""Figure 6 of the paper: every layer of Transformers of two to five blocks."""

from dataclasses import replace

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth
from hessianlab.growth.measure.config import PRACTICAL, SATURATED

PAPER = GrowthConfig(layers=(2, 3, 4, 5), fit_ranges=(("small", 0.0, 0.1), PRACTICAL, SATURATED))
"""The residual stream grows from block to block, so that scores of the fifth leave the leading power earlier."""
QUICK = replace(PAPER, layers=(2, 3), d_model=32, sequences=16, points=10, repeats=5, probes=10)

EXPERIMENT = Experiment(
    name="fig6",
    title="Growth at every layer of deeper Transformers",
    source="The paper, Figure 6",
    question="Do the blocks of every layer of a deep Transformer grow with the powers predicted for a single layer?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
