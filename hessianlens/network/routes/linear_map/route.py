"""Blocks between weights, biases and gains that enter the network through linear maps, in any layer of any model.

Norms of the last map under a cross-entropy are known from the outputs alone: the Hessian of its weight is
``sum_n y_n y_n^T (x) w_n (diag(p_n) - p_n p_n^T)``, which has no functional part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.question import Cost, Norms, Question, probe_vectors
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps
from hessianlens.network.routes.linear_map.plan import IN_SEVERAL_PLACES
from hessianlens.network.routes.linear_map.readout import Readout
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Block, Problem
from hessianlens.sizes import readable

NOT_ONE_USE = Refusal("")
"""A parameter enters in several places, about which the sum over its uses has the last word."""


class LinearMapRoute:
    """Sums over the positions at which the maps act, at the price of the curvature between what they put out.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        maps: The linear maps of its network.
    """

    name = "the sum over the positions of a linear map"

    def __init__(self, problem: Problem, maps: LinearMaps) -> None:
        self.problem, self.maps = problem, maps

    def cost(self, question: Question) -> Cost | Refusal:
        """One HVP per output feature of the row's map, and per position of a sequence where these are coupled."""
        plan = self.maps.plan(question.row, question.column, question.limits.hvps)
        if isinstance(plan, Refusal):
            return NOT_ONE_USE if plan is IN_SEVERAL_PLACES else plan
        held = plan.norm_bytes if question.norms_only else plan.held_bytes
        free = available_bytes(self.problem.device)
        if held > SAFE_SHARE * free:
            return Refusal(f"its closed form needs {readable(held)}, and {readable(free)} are free")
        if held > question.limits.held_bytes:
            return Refusal(f"its closed form needs {readable(held)}; method='exact' allows it", at_this_price=True)
        shared = plan.backpropagated or tuple((row.use.site, tuple(row.features.tolist())) for row in plan.row)
        return Cost(plan.why, plan.products, plan.products, held, shared)

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix."""
        return self.maps.operator(part, self._plan(question))

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """Norms of parts, row by row of the curvature where no two positions are coupled."""
        return self.maps.norms(self._plan(question), parts)

    def in_groups(self, questions: Sequence[Question]) -> Iterator[list[Question]]:
        """Questions whose rows are the same, one group after the other, with the HVPs that they share made."""
        for numbers in self.maps.share([self._plan(question) for question in questions]) if questions else ():
            yield [questions[number] for number in numbers]

    def _plan(self, question: Question) -> LinearMapPlan:
        plan = self.maps.plan(question.row, question.column, float("inf"))
        assert isinstance(plan, LinearMapPlan)
        return plan


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
