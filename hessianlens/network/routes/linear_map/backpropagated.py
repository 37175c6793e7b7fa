"""The curvature at a map, backpropagated from the end of the network: what it costs, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable

from hessianlens.curvature import forward_multiply_adds
from hessianlens.memory import available_bytes
from hessianlens.network.base import thresholds
from hessianlens.network.base.uses import Use
from hessianlens.network.routes.linear_map.backpropagation import backpropagate_curvature, multiply_adds
from hessianlens.network.routes.linear_map.batch_graph import Graphs
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.network.routes.linear_map.readout import LossCurvature, output_curvature_of
from hessianlens.network.routes.linear_map.steps import FollowingSteps, downstream_steps
from hessianlens.problems import Problem

_ROOM = 2**29
"""Bytes of curvature at other maps that are kept for later."""
_SHARE = 0.25
"""Share of the free memory that they may take."""


class BackpropagatedCurvature:
    """What lies behind the maps of a problem.

    Args:
        problem: From `hessianlens.problem`.
        graphs: Its graphs, which know the last map.
    """

    def __init__(self, problem: Problem, graphs: Graphs) -> None:
        self.problem, self._graphs = problem, graphs
        self._known: dict[tuple[int, float], Parts] = {}
        self._refused: set[tuple[int, int]] = set()
        self._before: dict[tuple[int, str], int] = {}
        self._losses: dict[int, LossCurvature | None] = {}
        self._steps: dict[tuple[int, str, int], FollowingSteps | None] = {}

    def loss(self, number: int) -> LossCurvature | None:
        """Where the curvature begins, at a batch; None where that is not known."""
        if number not in self._losses:
            readout = self._graphs.readout(number)
            found = readout or output_curvature_of(self.problem, self.problem.data[number])
            self._losses[number] = found
        return self._losses[number]

    def steps(self, number: int, use: Use) -> FollowingSteps | None:
        """What follows a map at a batch; None where something of it has no simple form."""
        key = number, use.parameter, use.site
        if key not in self._steps:
            loss = self.loss(number)
            behind = loss is not None and (loss.use is None or use.site < loss.use.site)
            self._steps[key] = (
                downstream_steps(self.problem, self.problem.data[number], use, loss.use)
                if loss is not None and behind
                else None
            )
        return self._steps[key]

    def hvps(self, number: int, use: Use) -> float | None:
        """What it costs where positions are coupled, in HVPs; None where it cannot be had."""
        loss, steps = self.loss(number), self.steps(number, use)
        if loss is None or steps is None or not steps.length or (number, use.site) in self._refused:
            return None
        calls = thresholds.HVP_MULTIPLY_ADDS_PER_PARAMETER * len(self.problem.params)
        one = thresholds.HVP_FORWARD_PASSES * forward_multiply_adds(self.problem) / len(self.problem.data) + calls
        return max(1.0, multiply_adds(loss, steps) / one)

    def curvature(self, number: int, use: Use, agrees: Callable[[Parts], bool]) -> Parts | None:
        """The curvature at what a map puts out; None if what lies behind it has no simple form.

        Args:
            number: Of the batch.
            use: The map, a table, or a bias that is added behind a map.
            agrees: Whether a curvature is that of the network, by a product with it.
        """
        key = number, self._before.get((number, use.parameter), use.site)
        if (number, use.site) in self._refused:
            return None
        if key not in self._known:
            found = self._found(number, use)
            if found is None or not agrees(found):
                self._refused.add((number, use.site))
                self._known.pop(key, None)
                return None
            return found
        return self._known[key]

    def _found(self, number: int, use: Use) -> Parts | None:
        loss, steps = self.loss(number), self.steps(number, use)
        if loss is None or steps is None:
            return None
        self._before |= {(number, parameter): site for parameter, site in steps.shifted.items()}
        self._known.clear()  # before there is more
        each = 2 * loss.gradient.element_size() * loss.positions * loss.width**2 * max(steps.length, 1)
        room = min(_ROOM, int(_SHARE * available_bytes(self.problem.device)))
        found = backpropagate_curvature(loss, steps, others=room // each)
        self._known |= {(number, site): parts for site, parts in found.items()}
        return found[steps.site]
