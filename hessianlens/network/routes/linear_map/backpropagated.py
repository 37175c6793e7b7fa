"""The curvature at a map, backpropagated from the end of the network: what it costs, and what is kept of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hessianlens.curvature import forward_multiply_adds
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base import thresholds
from hessianlens.network.base.uses import Use
from hessianlens.network.routes.linear_map.backpropagation import (
    Pair,
    backpropagate_curvature,
    held_bytes,
    multiply_adds,
    peak_bytes,
)
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
        self._agreed: set[tuple[int, int, int]] = set()
        self._refused: set[tuple[int, int, int]] = set()
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
        return frozenset() if steps is None else frozenset(steps.sites)

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
        peak = peak_bytes(loss, steps, _sites(steps, row, column))
        if peak > SAFE_SHARE * available_bytes(self.problem.device):
            return None
        calls = thresholds.HVP_MULTIPLY_ADDS_PER_PARAMETER * len(self.problem.params)
        one = thresholds.HVP_FORWARD_PASSES * forward_multiply_adds(self.problem) / len(self.problem.data) + calls
        return max(1.0, multiply_adds(loss, steps) / one)

    def peak_bytes(self, uses: Sequence[tuple[Use, Use]]) -> int:
        """Memory for the curvature between two maps at all batches, and while the one that takes the most is found.

        Args:
            uses: The maps of rows and columns, by batch.
        """
        held, beside = 0, 0
        for number, (row, column) in enumerate(uses):
            loss, steps = self.loss(number), self.steps(number, row)
            if loss is not None and steps is not None:
                pair = _sites(steps, row, column)
                result = held_bytes(loss, steps, pair)
                held, beside = held + result, max(beside, peak_bytes(loss, steps, pair) - result)
        return held + beside

    def curvature(self, number: int, row: Use, column: Use, agrees: Callable[[Parts], bool]) -> Parts | None:
        """The curvature between what two maps put out; None if what lies behind them has no simple form.

        Args:
            number: Of the batch.
            row: The map of the rows, a table, or a bias that is added behind a map.
            column: That of the columns, the same or one with the same inputs.
            agrees: Whether a curvature is that of the network, by a product with it.
        """
        asked = number, row.site, column.site
        if asked in self._refused or (steps := self.steps(number, row)) is None:
            return None
        pair = _sites(steps, row, column)
        found = _of_use(self._kept(number, pair) or self._found(number, steps, pair), steps, row)
        if found is None or not (asked in self._agreed or agrees(found)):
            self._refused.add(asked)
            self._known = {key: parts for key, parts in self._known.items() if key[0] != number}
            return None
        self._agreed.add(asked)
        return found

    def _kept(self, number: int, pair: Pair) -> Parts | None:
        """What is known between two sites; it is symmetric."""
        row, column = pair
        if (number, row, column) in self._known:
            return self._known[number, row, column]
        transposed = self._known.get((number, column, row))
        return None if transposed is None else transposed.T

    def _found(self, number: int, steps: FollowingSteps, pair: Pair) -> Parts | None:
        loss = self.loss(number)
        if loss is None:
            return None
        room = min(_ROOM, int(_SHARE * available_bytes(self.problem.device))) // len(self.problem.data)
        room -= held_bytes(loss, steps, pair)
        # Before there is more: that of other batches stays where all of them fit.
        self._known = {key: parts for key, parts in self._known.items() if room >= 0 and key[0] != number}
        found = backpropagate_curvature(loss, steps, pair, room)
        self._known |= {(number, *sites): parts for sites, parts in found.items()}
        return self._kept(number, pair)


def _sites(steps: FollowingSteps, row: Use, column: Use) -> Pair:
    """Those of two maps; that of the map in front for a bias that is added by itself."""
    if steps.summed:
        (table,) = steps.sites
        return table, table
    return steps.shifted.get(row.site, row.site), steps.shifted.get(column.site, column.site)


def _of_use(found: Parts | None, steps: FollowingSteps, use: Use) -> Parts | None:
    """From what is known of all positions: of the rows of a table, or of one that all sequences look up once."""
    if found is None or not (steps.summed or use.whole_table):
        return found
    if steps.summed:
        return found.over_sequences()
    assert steps.rows is not None
    return found.by_table(steps.rows, use.outputs[0])
