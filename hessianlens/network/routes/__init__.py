"""Routes to exact blocks of a network: each one way to the numbers, with one interface (`base.question.Route`)."""

from hessianlens.network.routes.last_attention.route import LastAttentionRoute, ZeroRoute
from hessianlens.network.routes.linear_map.route import LinearMapRoute, ReadoutRoute
from hessianlens.network.routes.linear_map.several_uses import SeveralUsesRoute

__all__ = ["LastAttentionRoute", "LinearMapRoute", "ReadoutRoute", "SeveralUsesRoute", "ZeroRoute"]
