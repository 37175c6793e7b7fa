"""Curvature along a training run, at a bounded price and without side effects."""

import lazy_loader

from hessianlens.renames import with_earlier_names

# `__init__.pyi` says which name comes from where. A name is imported when it is first used: see `hessianlens.cli`.
_public_name, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_EARLIER = {"Edge": "StabilityEdge", "edge_of": "stability_edge"}
__getattr__ = with_earlier_names(__name__, _public_name, _EARLIER)
