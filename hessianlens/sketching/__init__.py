"""Norms of a layer's blocks by the cheapest of several ways: exact, from random small matrices, from random vectors."""

from hessianlens.sketching.layer_block import Ways, block_ways, measured
from hessianlens.sketching.matrices import MatrixSampler
from hessianlens.sketching.sampler import Sampler, sampled
from hessianlens.sketching.vectors import VectorSampler

__all__ = ["MatrixSampler", "Sampler", "VectorSampler", "Ways", "block_ways", "measured", "sampled"]
