"""Curvature along one update of the weights: which parts of a step lower the loss, and which raise it."""

from hessianlens.updates.decomposition import directional
from hessianlens.updates.optimizers import optimizer_update
from hessianlens.updates.update_curvature import UpdateCurvature

__all__ = ["UpdateCurvature", "directional", "optimizer_update"]
