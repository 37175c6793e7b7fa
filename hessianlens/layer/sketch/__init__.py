"""Blocks of a layer as random small matrices see them: what sketches of their norms are made of."""

from hessianlens.layer.sketch.layer import LayerSketch
from hessianlens.layer.sketch.unfolding import RANK, Points, SeveralBlocks, Unfolding

__all__ = ["RANK", "LayerSketch", "Points", "SeveralBlocks", "Unfolding"]
