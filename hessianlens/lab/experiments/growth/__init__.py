"""What the growth figures share: how block norms change with the scale sigma of the token embeddings."""

from hessianlens.lab.experiments.growth.cells import growth_cells
from hessianlens.lab.experiments.growth.config import GrowthConfig
from hessianlens.lab.experiments.growth.measure import measure_growth

__all__ = ["GrowthConfig", "growth_cells", "measure_growth"]
