"""The Hessian of one attention layer: measured, drawn and explained on one page.

``measure_layer`` computes a `LayerFacts` from a `LayerConfig` and never draws; ``render`` turns facts into a
self-contained HTML page and never computes.
"""

from hessianlens.lab.layer_page.config import LayerConfig
from hessianlens.lab.layer_page.facts import LayerFacts
from hessianlens.lab.layer_page.measure import STEPS, measure_layer
from hessianlens.lab.layer_page.page import render

__all__ = ["STEPS", "LayerConfig", "LayerFacts", "measure_layer", "render"]
