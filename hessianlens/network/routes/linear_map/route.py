"""Blocks between weights, biases and gains that enter the network through linear maps, in any layer of any model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.question import Cost, Norms, Question
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Problem
from hessianlens.sizes import readable


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
            return plan
        held = plan.norm_bytes if question.norms_only else plan.held_bytes
        free = available_bytes(self.problem.device)
        if held > SAFE_SHARE * free:
            return Refusal(f"its closed form would hold {readable(held)}, and {readable(free)} are free")
        if held > question.limits.held_bytes:
            return Refusal(f"its closed form would hold {readable(held)}; method='exact' allows it", at_this_price=True)
        shared = tuple((row.use.site, tuple(row.features.tolist())) for row in plan.row)
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
