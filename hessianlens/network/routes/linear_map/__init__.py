"""Exact blocks of every parameter that enters a network through a linear map, in any layer of any model.

`plan` says how a block is found and what that costs; `batch_graph` has graphs with deltas at the maps, and the second
derivatives between the outputs of two of them; `exact` makes blocks of these as sums over positions, and `norms` their
norms, some rows after the other; `terms` writes them down, and `several_uses` adds up pairs of uses of a parameter that
enters more than once. Short cuts: `readout`, a last map under a cross-entropy; `backpropagation`, the curvature of the
loss brought to the maps before it through what lies between them (`steps`, `forms`, `attention_step`), for one matrix
of all that writes into a stream (`live_sites`); `backpropagated` prices and keeps it, `curvatures` gives it or that of
HVPs. `route` is what the planner asks.
"""

from hessianlens.network.routes.linear_map.batch_graph import SiteCurvature
from hessianlens.network.routes.linear_map.exact import LinearMaps
from hessianlens.network.routes.linear_map.plan import LinearMapPlan

__all__ = ["LinearMapPlan", "LinearMaps", "SiteCurvature"]
