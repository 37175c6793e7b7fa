"""Every block of a model within a budget: loading, measuring, table, advice, comparison, page."""

import lazy_loader

# `__init__.pyi` says which name comes from where. A name is imported when it is first used: see `hessianlens.cli`.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
