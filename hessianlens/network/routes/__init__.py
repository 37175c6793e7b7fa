"""Routes to exact blocks of a network: each one way to the numbers, with one interface (`base.question.Route`)."""

from hessianlens.network.routes.last_attention.route import LastAttentionRoute
from hessianlens.network.routes.linear_map.route import LinearMapRoute
from hessianlens.network.routes.readout_route import ReadoutRoute
from hessianlens.network.routes.zero import ZeroRoute

__all__ = ["LastAttentionRoute", "LinearMapRoute", "ReadoutRoute", "ZeroRoute"]
