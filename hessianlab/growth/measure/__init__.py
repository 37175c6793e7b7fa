"""How growth is measured: the norms of blocks at every scale sigma of the token embeddings."""

from hessianlens.lab.growth.measure.cells import growth_cells
from hessianlens.lab.growth.measure.config import GrowthConfig
from hessianlens.lab.growth.measure.norms import measure_growth

__all__ = ["GrowthConfig", "growth_cells", "measure_growth"]
