"""Exact blocks of every parameter that enters a network through a linear map, in any layer of any model.

`hooks` meets parameters at the operations that take them (`uses`), `grouping` says which positions the loss couples,
`planning` makes a `plan` of what a block costs, `curvature` holds the second derivatives between the outputs of two
maps, `kept_curvature` finds them once, from `graphs` with deltas at the maps (`hooked`), `exact` makes blocks of them
(`terms`) and their norms, a strip after the other (`streamed`). Short cuts: `readout`, a last map under a
cross-entropy; `backpropagation`, its curvature brought to the maps before it through what lies between them (`steps`),
and kept (`backpropagated`); `elementwise`, a map that reaches the rest through a function of single numbers.
"""

from hessianlens.network.linear_maps.curvature import SiteCurvature
from hessianlens.network.linear_maps.exact import LinearMaps
from hessianlens.network.linear_maps.plan import LinearMapPlan

__all__ = ["LinearMapPlan", "LinearMaps", "SiteCurvature"]
