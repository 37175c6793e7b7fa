"""Blocks that vanish: the bias of keys under an activation that no shift of a row of scores changes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.base.question import PROBE_VECTORS, Cost, Norms, Question
from hessianlens.network.routes.last_attention.route import NOT_LAST_ATTENTION, LastAttentionRoute
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, TokenSum
from hessianlens.problems import Problem


class ZeroRoute:
    """Blocks of weights on which nothing depends: zero with everything, without rounding.

    The same vector added to all keys of a row adds the same number to its scores. What changes the outputs at no
    weights has no second derivative with any other weight either.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        attention: The closed form of the last attention layer, which knows its activation.
    """

    name = "a block that vanishes"

    def __init__(self, problem: Problem, attention: LastAttentionRoute) -> None:
        self.problem, self._attention = problem, attention

    def cost(self, question: Question) -> Cost | Refusal:
        """Nothing."""
        found = self._attention.closed_form((question.row, question.column), question.limits)
        if isinstance(found, Refusal) or not (found.is_flat(question.row) or found.is_flat(question.column)):
            return NOT_LAST_ATTENTION
        reason = f"the same vector added to all keys of {found.prefix} changes none of its weights"
        return Cost(reason, fast_matvecs=True)

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix, without terms."""
        row, column = question.row, question.column
        shapes, dtype, device = [(1, block.numel) for block in (row, column)], self.problem.dtype, self.problem.device

        def build(_: Hashable, __: Hashable) -> TokenSum:
            return TokenSum([], shapes[0], shapes[1], dtype, device)

        def cut(tensor: Tensor) -> list[Tensor]:
            return [tensor.reshape(1, -1)]

        same = row.name == column.name
        grid = BlockGrid({row.name: shapes[0]}, {column.name: shapes[1]}, build, dtype, device, same)
        return ArrangedGrid(grid, row.shape, column.shape, cut, cut)

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """All zero."""
        shape = (*question.row.shape, PROBE_VECTORS)
        zero = torch.zeros(shape, dtype=self.problem.dtype, device=self.problem.device)
        return Norms(dict.fromkeys(parts, 0.0), dict.fromkeys(parts, zero))
