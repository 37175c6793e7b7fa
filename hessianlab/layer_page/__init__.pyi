"""The names of this package and the files they come from."""

from .config import LayerConfig
from .facts import LayerFacts
from .measure import STEPS, measure_layer
from .page import render

__all__ = ["STEPS", "LayerConfig", "LayerFacts", "measure_layer", "render"]
