"""The Hessian between named blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.curvature.pair import BlockPairOperator, Tangents


class HessianOperator(BlockPairOperator):
    """``H[r, c] = sum_batches d^2 loss / dr dc``, exact products by double backward."""

    def product(self, at: Linearisation, tangents: Tangents) -> Mapping[str, Tensor]:
        """``H v`` of one batch."""
        return at.hessian(tangents, self.row_parameters)
