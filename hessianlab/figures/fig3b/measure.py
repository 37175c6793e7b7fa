"""Figure 3b of the paper: the block of Figure 3a with layer norms, which divide out the scale of the embeddings."""

from dataclasses import replace

from hessianlab.experiments.experiment import Experiment
from hessianlab.growth.measure import GrowthConfig, growth_cells, measure_growth

PAPER = GrowthConfig(norm="pre", fit_ranges=(("small", 0.0, 0.05), ("large", 3.0, 10.0), ("all", 0.0, 10.0)))
"""Small: embeddings far below the attention's output, yet above the norm's epsilon; large: far above it. All: the paper
fits one line to the whole range."""
QUICK = replace(PAPER, d_model=32, sequences=8, repeats=10)

EXPERIMENT = Experiment(
    name="fig3b",
    title="Growth with layer norm in front",
    source="The paper, Figure 3b",
    question="How much of the growth is left when layer norms stand before attention, MLP and unembedding?",
    presets={"quick": QUICK, "paper": PAPER},
    cells=growth_cells,
    measure=measure_growth,
)
