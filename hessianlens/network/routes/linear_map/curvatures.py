"""Second derivatives between what maps put out, backpropagated from the loss or by HVPs, and kept for more blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hessianlens.network.base.recognition import Grouping
from hessianlens.network.base.uses import Kind
from hessianlens.network.routes.linear_map.backpropagated import BackpropagatedCurvature
from hessianlens.network.routes.linear_map.batch_graph import (
    Column,
    Graphs,
    InputMotion,
    SiteCurvature,
    site_curvatures,
)
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.network.routes.linear_map.plan import KEPT_BYTES, LinearMapPlan


class Curvatures:
    """Second derivatives between what maps put out, as many as there is room for.

    Args:
        graphs: The graphs of a problem.
        backpropagated: Its curvature from the end of the network.
        last_site: Gives the last map of the network.
        tick: Is called after every product.
    """

    def __init__(
        self,
        graphs: Graphs,
        backpropagated: BackpropagatedCurvature,
        last_site: Callable[[], int],
        tick: Callable[[], None],
    ) -> None:
        self._graphs, self._last_site, self._tick = graphs, last_site, tick
        self._backpropagated = backpropagated
        self._known: dict[tuple[object, ...], SiteCurvature | InputMotion] = {}

    def between(self, plan: LinearMapPlan, number: int) -> SiteCurvature:
        """Between what the two maps of a plan put out, at a batch."""
        if (passed := self._from_last_map(plan, number)) is not None:
            return passed
        found = self._known_or_found(plan, number)
        assert isinstance(found, SiteCurvature)
        return found

    def motion(self, plan: LinearMapPlan, number: int) -> InputMotion:
        """How the inputs of the last map move with what the row of a plan puts out, at a batch."""
        found = self._known_or_found(plan, number)
        assert isinstance(found, InputMotion)
        return found

    def _known_or_found(self, plan: LinearMapPlan, number: int) -> SiteCurvature | InputMotion:
        if (key := _key(plan, number)) not in self._known:
            self.find([plan], number)
        return self._known[key]

    def find(self, plans: Sequence[LinearMapPlan], number: int) -> None:
        """The curvature of plans with the same row, from the same products."""
        row, groups = plans[0].row[number], plans[0].groups[number][0]
        needed = [plan for plan in plans if self._from_last_map(plan, number) is None]
        missing = {key: plan for plan in needed if (key := _key(plan, number)) not in self._known}
        if not missing:
            return
        columns = [
            Column(
                plan.column[number], plan.groups[number][1], self._graphs.readout(number) if plan.reads_out else None
            )
            for plan in missing.values()
        ]
        pieces = (row, *(column.piece for column in columns if column.readout is None))
        hooked = self._graphs.hooked_batch(number, pieces, plans[0].products)
        found = site_curvatures(hooked, row, groups, columns, self._tick)
        size = sum(one.held_bytes for one in found)
        while self._known and size + self._held() > KEPT_BYTES:
            del self._known[next(iter(self._known))]
        self._known |= dict(zip(missing, found, strict=True))

    def _held(self) -> int:
        return sum(found.held_bytes for found in self._known.values())

    def _from_last_map(self, plan: LinearMapPlan, number: int) -> SiteCurvature | None:
        """The curvature between two maps from all that lies behind, step by step; None if that has no simple form."""
        row, column, (grouping, _) = plan.row[number], plan.column[number], plan.groups[number]
        if not (plan.backpropagated or self._is_cheap(plan, number)):
            return None

        def agrees(parts: Parts) -> bool:
            return self._graphs.hooked_batch(number, (row, column)).agrees(row.use.site, column.use.site, parts)

        found = self._backpropagated.curvature(number, row.use, column.use, agrees)
        if found is None:
            return None
        ggn, functional = _arranged(found, grouping)
        if len(row.features) < row.use.outputs[-1] or len(column.features) < column.use.outputs[-1]:
            ggn, functional = (part[:, :, row.features][..., column.features] for part in (ggn, functional))
        return SiteCurvature(ggn, functional, None)

    def _is_cheap(self, plan: LinearMapPlan, number: int) -> bool:
        """Whether no positions are coupled, and not only a few features of a wide map are asked for."""
        row, (grouping, _) = plan.row[number], plan.groups[number]
        if (
            not plan.same_site
            or row.use.kind is Kind.LOOK_UP
            or grouping.members > 1
            or row.use.site >= self._last_site()
        ):
            return False
        readout = self._graphs.readout(number)
        return readout is not None and row.use.outputs[-1] <= len(readout.weight) <= 2 * len(row.features)


def _arranged(found: Parts, grouping: Grouping) -> tuple[torch.Tensor, torch.Tensor]:
    """Both parts by group, ``[group, member, feature, member, feature]``."""
    if grouping.members == 1:
        found = found.uncoupled()
        parts = [None if part is None else part[:, None, :, None] for part in (found.ggn, found.functional)]
    else:
        found = found.coupled(grouping.members)
        parts = [None if part is None else found.by_sequence(part) for part in (found.ggn, found.functional)]
    ggn, functional = parts
    assert ggn is not None
    return ggn, ggn.new_zeros(()).expand_as(ggn) if functional is None else functional


def _key(plan: LinearMapPlan, number: int) -> tuple[object, ...]:
    """What the curvature between two maps is known by."""
    row, column = plan.row[number], plan.column[number]
    sides = [(piece.use.site, tuple(piece.features.tolist())) for piece in (row, column)]
    return (
        number,
        plan.reads_out,
        *sides,
        () if plan.same_site else (column.use.parameter, tuple(column.inputs.tolist())),
    )
