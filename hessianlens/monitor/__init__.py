"""Curvature along a training run, at a bounded price and without side effects."""

import lazy_loader

# `__init__.pyi` says which name comes from where. A name is imported when it is first used: see `hessianlens.cli`.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
