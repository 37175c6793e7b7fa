"""One model in, its curvature out: operators on named blocks and their norms, closed form where there is one."""

from hessianlens.inspect.forecast import Forecast, fit_memory, forecast
from hessianlens.inspect.norms import BlockNorms, block_norms
from hessianlens.inspect.operators import functional, ggn, hessian
from hessianlens.inspect.pairs import PairNorms, block_pair_norms

__all__ = [
    "BlockNorms",
    "Forecast",
    "PairNorms",
    "block_norms",
    "block_pair_norms",
    "fit_memory",
    "forecast",
    "functional",
    "ggn",
    "hessian",
]
