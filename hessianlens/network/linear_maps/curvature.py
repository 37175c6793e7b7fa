"""The curvature between what two maps put out, as tensors: what is needed of a network to know their blocks exactly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessianlens.network.linear_maps.grouping import Grouping
from hessianlens.network.linear_maps.piece import Piece
from hessianlens.network.linear_maps.tapped import Tapped
from hessianlens.network.linear_maps.uses import Kind
from hessianlens.network.recognition import drawn_like


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


def site_curvature(
    tapped: Tapped, row: Piece, rows: Grouping, column: Piece, columns: Grouping, tick: Callable[[], None]
) -> SiteCurvature:
    """One product for every member and feature of the row, in all groups at once.

    Args:
        tapped: A batch, with deltas at both sites.
        row: The piece that indexes the rows.
        rows: Its groups.
        column: The piece that indexes the columns.
        columns: Its groups, as many.
        tick: Is called after every product.
    """
    like = tapped.slope(row.use.site)
    shape = (rows.groups, rows.members, len(row.features), columns.members)
    ggn, functional = (like.new_empty(*shape, len(column.features)) for _ in range(2))
    inputs = tapped.inputs(column.use.parameter) if row.use.site != column.use.site else None
    kept = column.inputs if column.use.kind is not Kind.GAIN else column.features
    moved = None if inputs is None else like.new_zeros(*shape, len(kept))
    moves = False
    for member, place, tangent in tapped.tangents(row.use.site, row.features, rows):
        parts = tapped.products(row.use.site, tangent, column.use.site)
        for target, found in zip((ggn, functional), parts, strict=True):
            target[:, member, place] = columns.arrange(found)[..., column.features]
        if moved is not None and inputs is not None:
            change = tapped.pushed(row.use.site, tangent, inputs)
            if change is not None:
                moved[:, member, place] = columns.arrange(change)[..., kept]
                moves = True
        tick()
    return SiteCurvature(ggn, functional, moved if moves else None)


def grouping_of(
    tapped: Tapped, row: Piece, column: Piece, rows: list[Grouping], columns: list[Grouping]
) -> tuple[Grouping, Grouping] | None:
    """The finest groups that are not coupled; None if all are.

    Args:
        tapped: A batch, with deltas at both sites.
        row: The piece that indexes the rows.
        column: The piece that indexes the columns.
        rows: Groups that its positions may form, the finest first.
        columns: The same for the columns.
    """
    same = row.use.site == column.use.site
    for first in rows:
        for second in [first] if same else [one for one in columns if one.groups == first.groups]:
            sides = (row.use.site, row.features, first), (column.use.site, column.features, second)
            if tapped.couples_no_groups(*sides[0], *sides[1]) and (
                same or _moves_no_groups(tapped, row, first, column, second)
            ):
                return first, second
    return None


def _moves_no_groups(tapped: Tapped, row: Piece, rows: Grouping, column: Piece, columns: Grouping) -> bool:
    """Whether the column's inputs at a group move with the row's outputs in the same group only."""
    inputs = tapped.inputs(column.use.parameter)
    if inputs is None:
        return True
    like = tapped.slope(row.use.site)
    u = drawn_like(like)
    weights = 1 + rows.numbers(like.device)[:, None].to(like)
    behind = 1 + columns.numbers(like.device)[:, None].to(like)
    alone, weighted = (tapped.pushed(row.use.site, tangent, inputs) for tangent in (u, weights * u))
    if alone is None or weighted is None:
        return True
    allowed = 100 * torch.finfo(like.dtype).eps * float((behind * alone).abs().max())
    return bool(((weighted - behind * alone).abs() <= allowed).all())
