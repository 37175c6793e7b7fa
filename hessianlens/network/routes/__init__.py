"""Routes to exact blocks of a network: each one way to the numbers, behind one interface (`network.question.Route`)."""

from hessianlens.network.routes.last_attention import LastAttentionRoute
from hessianlens.network.routes.linear_map import LinearMapRoute
from hessianlens.network.routes.readout import ReadoutRoute
from hessianlens.network.routes.zero import ZeroRoute

__all__ = ["LastAttentionRoute", "LinearMapRoute", "ReadoutRoute", "ZeroRoute"]
