"""The Gauss-Newton matrix between named blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hessianlens.curvature.pair import BlockPairOperator, Tangents
from hessianlens.curvature.repeated import Repeated


class GaussNewtonOperator(BlockPairOperator):
    """``G[r, c] = sum_batches J_r^T C J_c`` with C the Hessian of the loss at the outputs."""

    method = "Jacobian products"
    gradients_per_product = 3.0

    def product(self, at: Repeated, tangents: Tangents) -> Mapping[str, Tensor]:
        """``G v`` of one batch."""
        return at.gauss_newton(tangents, self.row_parameters)
