"""The public names of this package."""

from .learning_rates import load_param_groups
from .measurement import BlockMeasurements, measure

__all__ = ["BlockMeasurements", "load_param_groups", "measure"]
