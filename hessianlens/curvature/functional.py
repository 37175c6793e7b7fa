"""The functional Hessian between named blocks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hessianlens.curvature.pair import BlockPairOperator, Tangents
from hessianlens.curvature.repeated import Repeated


class FunctionalOperator(BlockPairOperator):
    """``H - G = sum_batches sum_k g_k d^2 f_k / dr dc``: computed as such, not as a difference of larger matrices."""

    def product(self, at: Repeated, tangents: Tangents) -> Mapping[str, Tensor]:
        """``(H - G) v`` of one batch."""
        return at.functional(tangents, self.row_parameters)
