"""Blocks of a layer as random small matrices see them: what sketches of their norms are made of."""

from hessianlens.theory.sketch.layer import LayerSketch
from hessianlens.theory.sketch.several import SeveralBlocks
from hessianlens.theory.sketch.unfolding import RANK, Points, Unfolding

__all__ = ["RANK", "LayerSketch", "Points", "SeveralBlocks", "Unfolding"]
