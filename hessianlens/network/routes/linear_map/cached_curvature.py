"""The curvature that plans need, found once, backpropagated from the last map or by products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from hessianlens.network.base.uses import Kind
from hessianlens.network.routes.linear_map.backpropagation import BackpropagatedCurvature
from hessianlens.network.routes.linear_map.batch_graph import Graphs
from hessianlens.network.routes.linear_map.curvature import SiteCurvature, site_curvatures
from hessianlens.network.routes.linear_map.plan import KEPT_BYTES, LinearMapPlan
from hessianlens.problems import Problem


class Curvatures:
    """Second derivatives between what maps put out, as many as there is room for.

    Args:
        problem: From `hessianlens.problem`.
        graphs: Its graphs.
        last_site: Gives the last map of the network.
        tick: Is called after every product.
    """

    def __init__(
        self, problem: Problem, graphs: Graphs, last_site: Callable[[], int], tick: Callable[[], None]
    ) -> None:
        self._graphs, self._last_site, self._tick = graphs, last_site, tick
        self._backpropagated = BackpropagatedCurvature(problem)
        self._known: dict[tuple[object, ...], SiteCurvature] = {}

    def between(self, plan: LinearMapPlan, number: int) -> SiteCurvature:
        """Between what the two maps of a plan put out, at a batch."""
        if (passed := self._from_last_map(plan, number)) is not None:
            return passed
        if (key := _key(plan, number)) not in self._known:
            self.find([plan], number)
        return self._known[key]

    def find(self, plans: Sequence[LinearMapPlan], number: int) -> None:
        """The curvature of plans with the same row, from the same products."""
        row, groups = plans[0].row[number], plans[0].groups[number][0]
        missing = {key: plan for plan in plans if (key := _key(plan, number)) not in self._known}
        if not missing:
            return
        columns = [(plan.column[number], plan.groups[number][1]) for plan in missing.values()]
        hooked = self._graphs.hooked_batch(number, (row, *(column for column, _ in columns)), plans[0].products)
        found = site_curvatures(hooked, row, groups, columns, self._tick)
        size = sum(one.held_bytes for one in found)
        while self._known and size + self._held() > KEPT_BYTES:
            del self._known[next(iter(self._known))]
        self._known |= dict(zip(missing, found, strict=True))

    def _held(self) -> int:
        return sum(found.held_bytes for found in self._known.values())

    def _from_last_map(self, plan: LinearMapPlan, number: int) -> SiteCurvature | None:
        """The curvature at one map from all that lies behind it, step by step; None if that has no simple form."""
        row, column, (grouping, _) = plan.row[number], plan.column[number], plan.groups[number]
        if row.use.kind is Kind.LOOK_UP or row.use.site != column.use.site or grouping.members > 1:
            return None
        if row.use.site >= self._last_site():
            return None
        readout = self._graphs.readout(number)
        # A few features of a wide map are found sooner by products.
        if readout is None or not row.use.outputs[-1] <= len(readout.weight) <= 2 * len(row.features):
            return None

        def agrees(parts: tuple[Tensor, Tensor]) -> bool:
            return self._graphs.hooked_batch(number, (row,)).agrees(row.use.site, parts)

        whole = self._backpropagated.curvature(number, row.use, readout, agrees)
        if whole is None:
            return None
        if min(len(row.features), len(column.features)) < row.use.outputs[-1]:
            whole = whole[0][:, row.features][..., column.features], whole[1][:, row.features][..., column.features]
        return SiteCurvature(whole[0][:, None, :, None], whole[1][:, None, :, None], None)


def _key(plan: LinearMapPlan, number: int) -> tuple[object, ...]:
    """What the curvature between two maps is known by."""
    row, column = plan.row[number], plan.column[number]
    sides = [(piece.use.site, tuple(piece.features.tolist())) for piece in (row, column)]
    return number, *sides, () if plan.same_site else (column.use.parameter, tuple(column.inputs.tolist()))
