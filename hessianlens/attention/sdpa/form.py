"""Attention as a closed form of queries, keys, values and a bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hessianlens.attention.sdpa import derivatives
from hessianlens.attention.sdpa.chunking import AttentionOperands
from hessianlens.attention.sdpa.settings import AttentionRule
from hessianlens.derivatives.closed_form import ClosedForm, Parts
from hessianlens.derivatives.one_operation import Operation

attention = Operation("attention", "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? visible")
"""``O`` as rows (n, g, L, f), for an `AttentionForm` and the tensors of `AttentionOperands`."""


@dataclass(frozen=True)
class AttentionForm(ClosedForm):
    """``O(q, k, v, bias)``, with a mask that is not differentiated.

    Attributes:
        rule: What is computed.
        heads: How many key heads a sequence has.
    """

    rule: AttentionRule
    heads: int

    inputs, fixed, name = 4, 1, "scaled_dot_product_attention"
    instead = "torch's math attention (torch.nn.attention.sdpa_kernel(SDPBackend.MATH))"

    def _operands(self, tensors: Sequence[Any]) -> AttentionOperands:
        q, k, v, bias, visible = tensors
        return AttentionOperands(q, k, v, bias, visible, self.heads)

    def value(self, *tensors: Any) -> Tensor:
        """O."""
        return derivatives.value(self._operands(tensors), self.rule)

    def jvp(self, *tensors: Any, change: Parts) -> Tensor:
        """``dO``."""
        return derivatives.jvp(self._operands(tensors), self.rule, change)

    def vjp(self, *tensors: Any, g: Tensor, wanted: Sequence[bool]) -> Parts:
        """The gradient of ``<g, O>``."""
        return derivatives.vjp(self._operands(tensors), self.rule, g, wanted)

    def hvp(
        self,
        *tensors: Any,
        g: Tensor,
        change: Parts,
        wanted: Sequence[bool],
        pushing: bool,
        of_g: Tensor | None = None,
    ) -> Parts:
        """How that gradient changes, and how O does."""
        return derivatives.hvp(self._operands(tensors), self.rule, g, change, wanted, pushing, of_g)

    def second_jvp(self, *tensors: Any, first: Parts, second: Parts) -> Tensor:
        """The second derivative of O."""
        return derivatives.second_jvp(self._operands(tensors), self.rule, first, second)
