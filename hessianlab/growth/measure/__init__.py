"""How growth is measured: the norms of blocks at every scale sigma of the token embeddings."""

from hessianlab.growth.measure.cells import growth_cells
from hessianlab.growth.measure.config import GrowthConfig
from hessianlab.growth.measure.norms import measure_growth

__all__ = ["GrowthConfig", "growth_cells", "measure_growth"]
