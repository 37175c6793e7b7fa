"""Thresholds that steer the choice between exact and sampled answers, in one place to tune them."""

from __future__ import annotations

EXACT_MAX_HVPS = 512
"""HVPs up to which a matrix is computed exactly without being asked to."""
EXACT_MAX_BYTES = 2**28
"""Memory up to which it is."""
EXACT_MAX_HVPS_PER_PROBE = 8
"""HVPs that an exact norm may take for each probe of the sampled norm that it replaces."""
CLOSED_FORM_MIN_MATVECS = 20
"""Matvecs, made or announced, from which on an operator asks whether its closed form multiplies faster."""
