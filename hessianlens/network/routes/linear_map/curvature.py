"""The curvature between what two maps put out, as tensors: what is needed of a network to know their blocks exactly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.derivatives.potential import random_like
from hessianlens.network.base.coupling import Grouping
from hessianlens.network.base.uses import Kind, Piece
from hessianlens.network.routes.linear_map.batch_graph import HookedBatch


@dataclass(frozen=True, eq=False)
class SiteCurvature:
    """Second derivatives of the loss between two sites, by group of positions.

    Attributes:
        ggn: ``[group, member, feature, other member, other feature]`` of the Gauss-Newton part.
        functional: The same of the rest.
        moved: How the column's inputs move with the row's outputs, ``[group, member, feature, other member, input]``;
            None where they do not.
    """

    ggn: Tensor
    functional: Tensor
    moved: Tensor | None

    @property
    def held_bytes(self) -> int:
        """Memory of its tensors."""
        found = [self.ggn, self.functional, *([] if self.moved is None else [self.moved])]
        return sum(tensor.numel() * tensor.element_size() for tensor in found)


def site_curvatures(
    hooked: HookedBatch, row: Piece, rows: Grouping, others: Sequence[tuple[Piece, Grouping]], tick: Callable[[], None]
) -> list[SiteCurvature]:
    """One product for every member and feature of the row, in all groups and for all columns at once.

    Args:
        hooked: A batch, with deltas at all sites.
        row: The piece that indexes the rows.
        rows: Its groups.
        others: The pieces that index columns, with their groups, as many.
        tick: Is called after every product.
    """
    sites = list(dict.fromkeys(column.use.site for column, _ in others))
    made = [_Columns(hooked, row, rows, column, columns) for column, columns in others]
    for member, place, tangent in hooked.tangents(row.use.site, row.features, rows):
        products = hooked.products_at(row.use.site, tangent, sites)
        for one in made:
            one.take(member, place, tangent, products[one.column.use.site])
        tick()
    return [one.found() for one in made]


class _Columns:
    """The curvature between two sites, as it comes in."""

    def __init__(self, hooked: HookedBatch, row: Piece, rows: Grouping, column: Piece, columns: Grouping) -> None:
        like = hooked.slope(row.use.site)
        shape = (rows.groups, rows.members, len(row.features), columns.members)
        self.column, self._columns, self._hooked, self._site = column, columns, hooked, row.use.site
        self._parts = [like.new_empty(*shape, len(column.features)) for _ in range(2)]
        self._inputs = hooked.inputs(column.use.parameter) if row.use.site != column.use.site else None
        self._kept = column.inputs if column.use.kind is not Kind.GAIN else column.features
        self._moved = None if self._inputs is None else like.new_zeros(*shape, len(self._kept))
        self._moves = False

    def take(self, member: int, place: int, tangent: Tensor, products: Sequence[Tensor]) -> None:
        """The products with one tangent."""
        for target, found in zip(self._parts, products, strict=True):
            target[:, member, place] = self._columns.arrange(found)[..., self.column.features]
        if self._moved is not None and self._inputs is not None:
            change = self._hooked.jvp(self._site, tangent, self._inputs)
            if change is not None:
                self._moved[:, member, place] = self._columns.arrange(change)[..., self._kept]
                self._moves = True

    def found(self) -> SiteCurvature:
        """All of it."""
        return SiteCurvature(self._parts[0], self._parts[1], self._moved if self._moves else None)


def grouping_of(
    hooked: HookedBatch, row: Piece, column: Piece, rows: list[Grouping], columns: list[Grouping]
) -> tuple[Grouping, Grouping] | None:
    """The finest groups that are not coupled; None if all are.

    Args:
        hooked: A batch, with deltas at both sites.
        row: The piece that indexes the rows.
        column: The piece that indexes the columns.
        rows: Groups that its positions may form, the finest first.
        columns: The same for the columns.
    """
    same = row.use.site == column.use.site
    for first in rows:
        for second in [first] if same else [one for one in columns if one.groups == first.groups]:
            sides = (row.use.site, row.features, first), (column.use.site, column.features, second)
            if hooked.couples_no_groups(*sides[0], *sides[1]) and (
                same or _moves_no_groups(hooked, row, first, column, second)
            ):
                return first, second
    return None


def _moves_no_groups(hooked: HookedBatch, row: Piece, rows: Grouping, column: Piece, columns: Grouping) -> bool:
    """Whether the column's inputs at a group move with the row's outputs in the same group only."""
    inputs = hooked.inputs(column.use.parameter)
    if inputs is None:
        return True
    like = hooked.slope(row.use.site)
    u = random_like(like)
    weights = 1 + rows.numbers(like.device)[:, None].to(like)
    downstream = 1 + columns.numbers(like.device)[:, None].to(like)
    alone, weighted = (hooked.jvp(row.use.site, tangent, inputs) for tangent in (u, weights * u))
    if alone is None or weighted is None:
        return True
    allowed = 100 * torch.finfo(like.dtype).eps * float((downstream * alone).abs().max())
    return bool(((weighted - downstream * alone).abs() <= allowed).all())
