"""Norms of the weight and bias of the last linear map under a cross-entropy: known from the outputs alone.

The Hessian of W is ``sum_n y_n y_n^T (x) w_n (diag(p_n) - p_n p_n^T)``, which has no functional part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.base.question import Cost, Norms, Question, probe_vectors
from hessianlens.network.routes.linear_map import LinearMaps
from hessianlens.network.routes.linear_map.readout import Readout
from hessianlens.network.routes.linear_map.route import LinearMapRoute
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Block, Problem

_NOT_THE_LAST_MAP = Refusal("")


class ReadoutRoute:
    """The last map of a network with itself.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        maps: The linear maps of its network.
    """

    name = "the closed form of the last linear map"
    reason = "it makes the outputs, and the loss of every position is the cross-entropy of these"

    def __init__(self, problem: Problem, maps: LinearMaps) -> None:
        self.problem, self.maps = problem, maps

    def cost(self, question: Question) -> Cost | Refusal:
        """Nothing, if its norms are enough."""
        row = question.row
        asked = question.norms_only and question.is_diagonal and ".attn." not in row.name
        return Cost(self.reason) if asked and self.maps.reads_out(row) else _NOT_THE_LAST_MAP

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix, as that of any linear map."""
        return LinearMapRoute(self.problem, self.maps).operator(question, part)

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """Norms of parts; as those of any linear map where the sum would cancel."""
        found = self.maps.readout_norm(question.row)
        if found is None:
            return LinearMapRoute(self.problem, self.maps).norms(question, parts)
        product = self._matvecs(question)
        matvecs = {part: torch.zeros_like(product) if part == "functional" else product for part in parts}
        return Norms({part: 0.0 if part == "functional" else found for part in parts}, matvecs)

    def _matvecs(self, question: Question) -> Tensor:
        """The matrix times the probe vectors."""
        probes = probe_vectors(question.column, self.problem)
        return torch.stack([self._matvec(question.row, probe) for probe in probes.unbind(-1)], -1)

    def _matvec(self, block: Block, vector: Tensor) -> Tensor:
        pieces = self.maps.planner.pieces(block)
        assert not isinstance(pieces, Refusal)
        (matrix,) = pieces[0].cut(vector)
        is_weight, total = pieces[0].weighs, torch.zeros_like(matrix)
        for readout in self.maps.readouts():
            curved = _curved(readout, readout.at @ matrix if is_weight else matrix.expand(len(readout.at), -1))
            total = total + (readout.at.T @ curved if is_weight else curved.sum(0, keepdim=True))
        return pieces[0].join(total)


def _curved(readout: Readout, tangent: Tensor) -> Tensor:
    """``w_n (diag(p_n) - p_n p_n^T) u_n``."""
    p = readout.chances
    return readout.weights[:, None] * p * (tangent - (p * tangent).sum(-1, keepdim=True))
