"""One model in, its curvature out: operators on named blocks and their norms, closed form where there is one."""

from hessianlens.inspect.norms import BlockNorms, block_norms
from hessianlens.inspect.operators import functional, ggn, hessian

__all__ = ["BlockNorms", "block_norms", "functional", "ggn", "hessian"]
