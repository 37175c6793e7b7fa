"""Curvature inside a network: operators on named blocks, their norms and pairs, closed form where there is one."""

from hessianlens.network.forecasting import Forecast, fit_memory, forecast
from hessianlens.network.head_health import AttentionHealth, attention_health
from hessianlens.network.norms import BlockNorms, block_norms
from hessianlens.network.operators import functional, ggn, hessian
from hessianlens.network.pairs import PairNorms, block_pair_norms

__all__ = [
    "AttentionHealth",
    "BlockNorms",
    "Forecast",
    "PairNorms",
    "attention_health",
    "block_norms",
    "block_pair_norms",
    "fit_memory",
    "forecast",
    "functional",
    "ggn",
    "hessian",
]
