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
from hessianlens.network.routes.linear_map.readout import LossCurvature, loss_at_outputs
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
        self._known: dict[tuple[int, float, float], Parts] = {}
        self._refused: set[tuple[int, int, int]] = set()
        self._before: dict[tuple[int, str], int] = {}
        self._losses: dict[int, LossCurvature | None] = {}
        self._steps: dict[tuple[int, str, int], FollowingSteps | None] = {}

    def loss(self, number: int) -> LossCurvature | None:
        """Where the curvature begins, at a batch; None where that is not known."""
        if number not in self._losses:
            readout = self._graphs.readout(number)
            found = readout or loss_at_outputs(self.problem, self.problem.data[number])
            self._losses[number] = found
        return self._losses[number]

    def steps(self, number: int, use: Use) -> FollowingSteps | None:
        """What follows a map at a batch; None where something of it has no simple form."""
        key, loss = (number, use.parameter, use.site), self.loss(number)
        if key not in self._steps and (loss is None or (loss.use is not None and use.site >= loss.use.site)):
            self._steps[key] = None
        elif key not in self._steps:
            assert loss is not None
            self._steps[key] = found = downstream_steps(self.problem, self.problem.data[number], use, loss.use)
            if found is not None and not found.summed:
                self._steps |= {(number, *each): found for each in found.parameters}
        return self._steps[key]

    def together(self, number: int, use: Use) -> frozenset[int]:
        """Sites of the maps that have their curvature from the same steps, at a batch."""
        steps = self.steps(number, use)
        return frozenset() if steps is None else steps.sites

    def hvps(self, number: int, row: Use, column: Use, length: int) -> float | None:
        """What the curvature between two maps costs, in HVPs; None where it cannot be had.

        Args:
            number: Of the batch.
            row: The map, or table, of the rows.
            column: That of the columns, the same or one with the same inputs.
            length: Positions that are coupled, of a sequence or of a table.
        """
        loss, steps = self.loss(number), self.steps(number, row)
        if loss is None or steps is None or not steps.length or loss.positions % steps.length:
            return None
        if steps.length != length and not row.whole_table:
            return None
        if steps.summed and row.whole_table:
            return None
        if column.site != row.site and (column.parameter, column.site) not in steps.parameters:
            return None
        if (number, row.site, column.site) in self._refused:
            return None
        calls = thresholds.HVP_MULTIPLY_ADDS_PER_PARAMETER * len(self.problem.params)
        one = thresholds.HVP_FORWARD_PASSES * forward_multiply_adds(self.problem) / len(self.problem.data) + calls
        return max(1.0, multiply_adds(loss, steps) / one)

    def curvature(self, number: int, row: Use, column: Use, agrees: Callable[[Parts], bool]) -> Parts | None:
        """The curvature between what two maps put out; None if what lies behind them has no simple form.

        Args:
            number: Of the batch.
            row: The map of the rows, a table, or a bias that is added behind a map.
            column: That of the columns, the same or one with the same inputs.
            agrees: Whether a curvature is that of the network, by a product with it.
        """
        if (number, row.site, column.site) in self._refused or self.steps(number, row) is None:
            return None
        sides = tuple(self._before.get((number, use.parameter), use.site) for use in (row, column))
        key = number, sides[0], sides[1]
        if key in self._known:
            return self._known[key]
        found = self._found(number, row, column)
        if found is None or not agrees(found):
            self._refused.add((number, row.site, column.site))
            self._known.pop(key, None)
            return None
        return found

    def _found(self, number: int, row: Use, column: Use) -> Parts | None:
        loss, steps = self.loss(number), self.steps(number, row)
        if loss is None or steps is None:
            return None
        self._before |= {(number, parameter): site for parameter, site in steps.shifted.items()}
        self._known.clear()  # before there is more
        each = 2 * loss.gradient.element_size() * loss.positions * loss.width**2 * max(steps.length, 1)
        room = min(_ROOM, int(_SHARE * available_bytes(self.problem.device)))
        wanted = steps.shifted.get(row.parameter, row.site), steps.shifted.get(column.parameter, column.site)
        if steps.summed:
            (table,) = steps.sites
            wanted = table, table
        found = backpropagate_curvature(loss, steps, wanted, others=room // each)
        self._known |= {(number, *pair): parts for pair, parts in found.items()}
        own = found.get(wanted)
        if own is None or not (row.whole_table or steps.summed):
            return own
        self._known.clear()  # what is known of positions is not what is asked for of a table
        if steps.summed:
            return own.over_sequences()
        assert steps.rows is not None
        return own.by_table(steps.rows, row.outputs[0])
