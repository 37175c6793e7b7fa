"""Thresholds that steer the choice between exact and sampled answers, in one place to tune them."""

from __future__ import annotations

EXACT_MAX_HVPS = 512
"""HVPs up to which an operator has a closed form without being asked to, for numbers that are exact in any case."""
EXACT_MAX_BYTES = 2**28
"""Memory up to which it is."""
EXACT_MAX_HVPS_PER_PROBE = 8
"""HVPs that an exact norm may take for each probe of the sampled norm in its place, where they are little work."""
EXACT_SMALL_MULTIPLY_ADDS = 2e9
"""Multiply-adds up to which exact is little work, whatever sampling would take: about a tenth of a second."""
HVP_FORWARD_PASSES = 4
"""Multiply-adds of an HVP through a graph that is there, in those of a forward pass."""
CLOSED_FORM_MIN_MATVECS = 20
"""Matvecs, made or announced, from which on an operator asks whether its closed form multiplies faster."""
BACKPROPAGATION_MIN_HVPS = 32
"""HVPs for the curvature between coupled positions from which on it is asked what backpropagating it would cost."""
HVP_MULTIPLY_ADDS_PER_PARAMETER = 3e5
"""Multiply-adds that would take as long as the calls of an HVP for one parameter, whatever its size."""
MULTIPLY_ADDS_PER_NUMBER = (4, 20)
"""Multiply-adds that would take as long as to read and write a number of a matrix: in the processor's cache, or not."""
CACHED_BYTES = 2**23
"""The largest matrix that is taken to stay in the cache."""
