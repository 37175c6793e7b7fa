"""Figure 3a of the paper: block norms of one Transformer block against the scale of the embeddings."""

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth

PAPER = GrowthConfig()
QUICK = GrowthConfig(d_model=32, sequences=16, points=16, repeats=8)

EXPERIMENT = Experiment(
    name="fig3a",
    title="Growth of the query and value blocks in one Transformer block",
    source="The paper, Figure 3a",
    question="Do the query and value blocks grow with the powers 6 and 5, and 2, of the embedding scale?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
