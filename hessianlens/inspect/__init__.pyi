"""The public names of this package."""

from .learning_rates import load_param_groups
from .measurement import Measured, measure

__all__ = ["Measured", "load_param_groups", "measure"]
