"""Norms of a layer's blocks by the cheapest of several ways: exact, from random small matrices, from random vectors."""

from hessianlens.sketching.layer_block import NormMethods, estimate_norm, norm_methods
from hessianlens.sketching.matrices import MatrixSampler
from hessianlens.sketching.sampler import Sampler, estimate_to_rtol
from hessianlens.sketching.vectors import VectorSampler

__all__ = [
    "MatrixSampler",
    "NormMethods",
    "Sampler",
    "VectorSampler",
    "estimate_norm",
    "estimate_to_rtol",
    "norm_methods",
]
