"""The matrix-free operator of every part of the curvature."""

from __future__ import annotations

from hessianlens.curvature.functional import FunctionalOperator
from hessianlens.curvature.ggn import GaussNewtonOperator
from hessianlens.curvature.hessian import HessianOperator
from hessianlens.curvature.pair import BlockPairOperator

MATRIX_FREE: dict[str, type[BlockPairOperator]] = {
    "full": HessianOperator,
    "ggn": GaussNewtonOperator,
    "functional": FunctionalOperator,
}
"""By the names of `hessianlens.parts`."""
