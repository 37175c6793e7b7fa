"""The planner: which route answers a question about the curvature of a network, and why.

Every exact number goes through here. Routes are asked from the cheapest on; the first that can answer within the
limits is taken, and its answer is certified by a Hessian-vector product of plain autograd. An answer that disagrees is
never given: its route is refused for that block, and the next one is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.failures import error_line
from hessianlens.memory import lacks_memory
from hessianlens.network.base.all_data import on_all_data
from hessianlens.network.base.question import Cost, Limits, Norms, Question, Route, probe_vectors
from hessianlens.network.base.uses import OtherOrder
from hessianlens.network.certificate import Certificate, impossible_norm
from hessianlens.network.routes import LastAttentionRoute, LinearMapRoute, ReadoutRoute, SeveralUsesRoute, ZeroRoute
from hessianlens.network.routes.last_attention import ExactAttention
from hessianlens.network.routes.linear_map import LinearMaps
from hessianlens.operators import StructuredOperator
from hessianlens.problems import Block, Problem

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Choice:
    """A route that can answer a question, and what that costs.

    Attributes:
        question: The question.
        route: The route.
        cost: What it costs by this route.
        disagreements: What other routes were refused for, where autograd disagreed with them.
    """

    question: Question
    route: Route
    cost: Cost
    disagreements: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why the answer is exact, and what was tried before."""
        return "; ".join([self.cost.reason, *self.disagreements])


class Planner:
    """Exact blocks of a problem.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        refusal: Why there are none.
    """

    def __init__(self, problem: Problem, refusal: Refusal | None = None) -> None:
        self.problem, self.refusal = problem, refusal
        self._disagreements: dict[tuple[str, tuple[str, str]], str] = {}
        self._certified: set[tuple[str, tuple[str, str], str]] = set()

    @cached_property
    def maps(self) -> LinearMaps:
        """The linear maps of the network."""
        return LinearMaps(self.problem)

    @cached_property
    def attention(self) -> LastAttentionRoute:
        """The closed form of the last attention layer."""
        return LastAttentionRoute(self.problem, self.maps)

    @cached_property
    def linear_map(self) -> LinearMapRoute:
        """Sums over positions of linear maps."""
        return LinearMapRoute(self.problem, self.maps)

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """All routes, cheapest first."""
        zero, readout = ZeroRoute(self.problem, self.attention), ReadoutRoute(self.problem, self.maps)
        return readout, zero, self.attention, SeveralUsesRoute(self.problem, self.maps), self.linear_map

    @cached_property
    def certificate(self) -> Certificate:
        """Plain autograd's products."""
        return Certificate(self.problem)

    # --- the choice --------------------------------------------------------------------------------------------------

    def choose(self, question: Question) -> Choice | Refusal:
        """The cheapest route that can answer a question within its limits; or why none can."""
        if self.refusal is not None:
            return self.refusal
        certificate_hvps, limits = self.certificate.hvps(question.row, question.column), question.limits
        affordable = replace(question, limits=replace(limits, hvps=max(0.0, limits.hvps - certificate_hvps)))
        refusals: list[Refusal] = []
        for route in self.routes:
            if (disagreement := self._disagreements.get((route.name, question.pair))) is not None:
                refusals.append(Refusal(disagreement))
                continue
            cost = _run(route, partial(route.cost, affordable))
            if isinstance(cost, Cost):
                cost = replace(cost, certificate_hvps=certificate_hvps)
                return Choice(question, route, cost, self._disagreements_of(question))
            refusals.append(cost)
        # The most general route comes last, and what it says first, where it says anything.
        *special, general = [refusal for refusal in refusals if refusal.reason] or refusals[-1:]
        others = [r for r in special if not (r.at_this_price and general.at_this_price)]
        reasons = [general.reason, *(r.reason for r in others if r.reason and general.reason not in r.reason)]
        at_this_price = any(refusal.at_this_price for refusal in refusals)
        hvps = general.hvps + certificate_hvps if general.hvps else 0.0
        return Refusal("; ".join(dict.fromkeys(reasons)), at_this_price, hvps)

    def closed_form(self, blocks: Sequence[Block], limits: Limits) -> ExactAttention | Refusal:
        """The closed form of the last attention layer, if it is asked for and affordable."""
        return self.refusal or self.attention.closed_form(blocks, limits)

    def _disagreements_of(self, question: Question) -> tuple[str, ...]:
        return tuple(said for (_, pair), said in self._disagreements.items() if pair == question.pair)

    # --- certified answers -------------------------------------------------------------------------------------------

    def announce(self, questions: Sequence[Question]) -> None:
        """Say which questions follow, so that their certificates share a graph."""
        if self.refusal is None:
            self.certificate.announce([(question.row, question.column) for question in questions])

    def operator(self, choice: Choice, part: str) -> tuple[StructuredOperator, Choice] | Refusal:
        """The matrix of a question, certified, and the choice that it came from in the end; or why there is none."""
        found: Choice | Refusal = choice
        while isinstance(found, Choice):
            operator = self._built(found, part)
            if operator is not None:
                operator.why = found.why
                return operator, found
            found = self.choose(found.question)
        return found

    def norms(self, choice: Choice, parts: Sequence[str]) -> tuple[Norms, Choice] | Refusal:
        """Norms of a question, certified, and the choice that they came from in the end; or why there are none."""
        found: Choice | Refusal = choice
        while isinstance(found, Choice):
            norms = _run(found.route, partial(found.route.norms, found.question, parts))
            if isinstance(norms, Refusal):
                self._refuse(found, norms)
            elif self._agree(found, norms.matvecs, norms.values):
                return norms, found
            found = self.choose(found.question)
        return found

    def certified(self, choice: Choice, parts: Sequence[str]) -> bool:
        """Whether a route's matrix is right, for estimates that rest on the same factors."""
        return all(self._built(choice, part) is not None for part in parts)

    def _built(self, choice: Choice, part: str) -> StructuredOperator | None:
        """The matrix by one route, certified; None if it is not, which is noted."""
        operator = choice.route.operator(choice.question, part)
        key = (choice.route.name, choice.question.pair, part)
        if key in self._certified:
            return operator
        probe = probe_vectors(choice.question.column, self.problem)[..., :1]
        matvecs = _run(choice.route, lambda: operator._matmat([probe]))
        if isinstance(matvecs, Refusal):
            self._refuse(choice, matvecs)
            return None
        if not self._agree(choice, {part: matvecs[0]}):
            return None
        self._certified.add(key)
        return operator

    def _agree(self, choice: Choice, matvecs: Mapping[str, Tensor], norms: Mapping[str, float] | None = None) -> bool:
        """Whether matvecs with probe vectors are those of plain autograd, and norms are those of matvecs."""
        row, column = choice.question.row, choice.question.column
        refusal = self.certificate.compare(row, column, {part: found[..., 0] for part, found in matvecs.items()})
        for part, norm in (norms or {}).items():
            if refusal is None and impossible_norm(norm, matvecs[part].reshape(-1, matvecs[part].shape[-1])):
                refusal = Refusal(f"its norm of the {part} part is not that of its matvecs with probe vectors")
        if refusal is not None:
            self._refuse(choice, refusal)
        return refusal is None

    def _refuse(self, choice: Choice, refusal: Refusal) -> None:
        said = f"{choice.route.name} was not used: {refusal.reason}"
        self._disagreements[choice.route.name, choice.question.pair] = said
        self._disagreements[choice.route.name, choice.question.pair[::-1]] = said


def _run(route: Route, work: Callable[[], T]) -> T | Refusal:
    """What a route does; why not, if the model fails under the hooks that it works with, as checkpoints do."""
    try:
        return work()
    except OtherOrder as error:
        return Refusal(str(error))
    except RuntimeError as error:
        if lacks_memory(error):
            raise
        return Refusal(f"{route.name} cannot be computed, since the model does not run with hooks: {error_line(error)}")


def planner_of(problem: Problem) -> Planner:
    """The planner of a problem, on the data of all ranks; it is made once and keeps what it learns."""

    def make() -> Planner:
        everything = on_all_data(problem)
        return Planner(problem, everything) if isinstance(everything, Refusal) else Planner(everything)

    return problem.cached(Planner, make)
