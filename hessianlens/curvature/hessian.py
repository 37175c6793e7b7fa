"""The Hessian between named blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hessianlens.curvature.pair import BlockPairOperator, Tangents
from hessianlens.curvature.repeated import Repeated


class HessianOperator(BlockPairOperator):
    """``H[r, c] = sum_batches d^2 loss / dr dc``, exact products by double backward."""

    def product(self, at: Repeated, tangents: Tangents) -> Mapping[str, Tensor]:
        """``H v`` of one batch."""
        return at.hessian(tangents, self.row_parameters)
