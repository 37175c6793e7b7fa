"""Exact blocks of every parameter that enters a network through a linear map, in any layer of any model.

`taps` meets parameters at the operations that take them, `grouping` says which positions the loss couples, `curvature`
finds the second derivatives between the outputs of two maps, `exact` makes blocks of them.
"""

from hessianlens.network.linear_maps.curvature import SiteCurvature
from hessianlens.network.linear_maps.exact import LinearMaps, Plan

__all__ = ["LinearMaps", "Plan", "SiteCurvature"]
