"""The Hessian of one attention layer: measured, drawn and explained on one page.

``measure_layer`` computes a `LayerFacts` from a `LayerConfig` and never draws; ``render`` turns facts into a
self-contained HTML page and never computes.
"""

import lazy_loader

# `__init__.pyi` says which name comes from where. A name is imported when it is first used: see `hessianlens.cli`.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
