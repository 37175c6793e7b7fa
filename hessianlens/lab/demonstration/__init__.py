"""The Hessian of one attention layer: measured, drawn and explained on one page.

``measure_layer`` computes a `LayerFacts` from a `DemonstrationConfig` and never draws; ``render`` turns facts into a
self-contained HTML page and never computes; ``write_page`` puts it on disk, whole or not at all.
"""

from hessianlens.lab.demonstration.config import DemonstrationConfig
from hessianlens.lab.demonstration.facts import LayerFacts
from hessianlens.lab.demonstration.measure import STEPS, measure_layer
from hessianlens.lab.demonstration.page import check_directory, render, write_page

__all__ = ["STEPS", "DemonstrationConfig", "LayerFacts", "check_directory", "measure_layer", "render", "write_page"]
