"""One batch of a network with deltas behind some of its weights, and the curvature at those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.curvature.linearisation import Linearisation
from hessianlens.derivatives.difference import random_like
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.recognition import Grouping, close, couples_no_groups
from hessianlens.network.base.uses import Kind, ParameterUses, Piece, Use
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.network.routes.linear_map.readout import Readout, readout_of
from hessianlens.problems import Batch, Problem

_UNITS = 16
"""Units in the last place of the larger part of a curvature by which the smaller one may be off."""


def record_uses(problem: Problem, batch: Batch) -> ParameterUses:
    """How every parameter enters the network, from one forward pass; what it is multiplied with is not kept."""
    with problem.scope(), torch.no_grad(), Hooks(problem.params) as hooks:
        problem.forward(problem.params, batch)
    return ParameterUses([replace(use, inputs=None) for use in hooks.record.uses], hooks.record.unknown)


class HookedBatch:
    """One batch, seen from what some operations put out.

    Args:
        problem: The problem.
        batch: One batch of it.
        uses: Parameters in use, at the sites of interest.
        readout: The network's last map, if what lies behind it is to be taken from its quadratic form.
    """

    def __init__(self, problem: Problem, batch: Batch, uses: Sequence[Use], readout: Readout | None = None) -> None:
        self.problem, self.readout = problem, readout
        self._shapes = {use.site: use.outputs for use in uses}
        self._record = ParameterUses()
        deltas = {
            str(site): torch.zeros(shape, dtype=problem.dtype, device=problem.device)
            for site, shape in self._shapes.items()
        }
        # Modules that are called by themselves, as when the cause is looked for, would be counted as further sites.
        loss = problem.loss if readout is None else readout.loss
        seen = replace(problem, forward=self._forward, loss=loss, params=deltas, blocks={}, data=[batch], source=None)
        self.at = Linearisation(seen, batch, list(deltas))

    def _forward(self, deltas: Mapping[str, Tensor], batch: Batch) -> Tensor:
        with Hooks(self.problem.params, {int(site): delta for site, delta in deltas.items()}) as hooks:
            outputs = self.problem.forward(self.problem.params, batch)
        self._record = hooks.record
        return outputs if self.readout is None else self.readout.inputs(hooks.record)

    def inputs(self, use: Use) -> Tensor | None:
        """What a parameter is multiplied with, ``[position, feature]``, on the graph; None for a shift."""
        found = self._record.input(use)
        return None if found is None else found.reshape(-1, found.shape[-1])

    def slope(self, site: int) -> Tensor:
        """The gradient of the loss there, ``[position, feature]``."""
        return self._slopes[str(site)].reshape(self.positions(site), -1)

    @cached_property
    def _slopes(self) -> dict[str, Tensor]:
        return self.at.vjp_gradient()

    def positions(self, site: int) -> int:
        """Positions at which a map puts something out."""
        return int(torch.Size(self._shapes[site][:-1]).numel())

    def products(self, column: int, tangent: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """``C u`` of the Gauss-Newton and of the functional part, from one site to another, by position."""
        return self.products_at(column, tangent, [row])[row]

    def products_at(self, column: int, tangent: Tensor, rows: Sequence[int]) -> dict[int, tuple[Tensor, Tensor]]:
        """The same at several sites, in one pass."""
        parts = self.at.split({str(column): tangent.reshape(self._shapes[column])}, [str(row) for row in rows])
        ggn, functional = ({row: found[str(row)].reshape(self.positions(row), -1) for row in rows} for found in parts)
        return {row: (ggn[row], functional[row]) for row in rows}

    def agrees(self, row: int, column: int, parts: Parts) -> bool:
        """Whether these are the two parts of the curvature between two sites, by a product.

        A part that is zero, or nearly so, is rounded as the larger one is.
        """
        u = random_like(self.slope(column))
        pairs = list(zip(parts.matvec(u), self.products(column, u, row), strict=True))
        rounding = _UNITS * torch.finfo(u.dtype).eps * max(float(expected.abs().max()) for _, expected in pairs)
        return all(close(own, v) or float((own - v).abs().max()) <= rounding for own, v in pairs)

    def tangents(self, site: int, features: Tensor, grouping: Grouping) -> Iterator[tuple[int, int, Tensor]]:
        """Member and place among the features, with a one there in every group at once."""
        zeros = torch.zeros(
            self.positions(site), self._shapes[site][-1], dtype=self.problem.dtype, device=self.problem.device
        )
        for member in range(grouping.members):
            for place, feature in enumerate(features.tolist()):
                tangent = grouping.arrange(zeros).clone()
                tangent[:, member, feature] = 1
                yield member, place, grouping.flatten(tangent)

    def jvp(self, site: int, tangent: Tensor, value: Tensor) -> Tensor | None:
        """``dx u`` for something on the way behind a site, such as what goes into a later map; None if it is not."""
        leaf = self.at.leaves[str(site)]
        if not value.requires_grad:
            return None
        if id(value) not in self._vjp:
            dummy = torch.zeros_like(value, requires_grad=True)
            vjp = torch.autograd.grad(value, leaf, dummy, create_graph=True, retain_graph=True, allow_unused=True)
            self._vjp[id(value)] = (value, dummy, vjp[0])
        _, dummy, back = self._vjp[id(value)]
        if back is None or not back.requires_grad:
            return None
        moved = torch.autograd.grad(back, dummy, tangent.reshape(leaf.shape), retain_graph=True, allow_unused=True)
        return moved[0]

    @cached_property
    def _vjp(self) -> dict[int, tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def couples_no_groups(
        self, column: int, features: Tensor, columns: Grouping, row: int, kept: Tensor, rows: Grouping
    ) -> bool:
        """Whether the curvature between two sites couples no two groups.

        Args:
            column: The site of the tangents.
            features: Its features.
            columns: Its groups.
            row: The site of the products.
            kept: Its features.
            rows: Its groups.
        """
        dtype, device = self.problem.dtype, self.problem.device
        if columns.groups != rows.groups:
            return False
        generator = torch.Generator().manual_seed(0)
        u = torch.zeros(self.positions(column), self._shapes[column][-1], dtype=dtype, device=device)
        drawn = torch.randn(len(u), len(features), generator=generator, dtype=torch.float64, device="cpu")
        u[:, features.to(device)] = drawn.to(device, dtype)

        def product(tangent: Tensor) -> list[Tensor]:
            return [found[:, kept.to(device)] for found in self.products(column, tangent, row)]

        return couples_no_groups(product, u, columns.numbers(device), rows.numbers(device))


class Graphs:
    """The graph of one batch, kept for further blocks of the same maps.

    Args:
        problem: From `hessianlens.problem`.

    Attributes:
        kept: The graph, and the batch and maps that it is of; None if there is none.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.kept: tuple[tuple[int, frozenset[int], bool], HookedBatch] | None = None
        self._readouts: dict[int, Readout | None] = {}
        self._joined: Mapping[int, Sequence[Piece]] = {}

    def hooked_batch(self, number: int, pieces: Sequence[Piece], products: int = 0) -> HookedBatch:
        """A batch with deltas at some maps; where many products follow, with the quadratic form of its last map."""
        sites = frozenset(piece.use.site for piece in pieces)
        readout = self._readout(number, max(sites), products)
        uses = {piece.use.site: piece.use for piece in (*self._joined.get(number, ()), *pieces)}
        if readout is not None:
            uses = {site: use for site, use in uses.items() if site < readout.use.site}
        key = number, frozenset(uses), readout is not None
        if self.kept is None or self.kept[0] != key:
            self.kept = None  # before the next one is made: never two graphs at once
            self.kept = key, HookedBatch(self.problem, self.problem.data[number], list(uses.values()), readout)
        return self.kept[1]

    @contextmanager
    def together(self, joined: Mapping[int, Sequence[Piece]]) -> Iterator[None]:
        """A scope in which some maps share one graph, because many pairs of them are asked for; by batch."""
        self._joined = joined
        try:
            yield
        finally:
            self._joined = {}
            self.release()

    def release(self) -> None:
        """Drop the graph."""
        self.kept = None

    def _readout(self, number: int, site: int, products: int) -> Readout | None:
        """The last map, if it lies behind a site and its quadratic form is worth so many products, or known."""
        readout = self.readout(number) if products or number in self._readouts else None
        if readout is None or site >= readout.use.site or not readout.pays:
            return None
        known = "curvature" in vars(readout)
        return readout if known or 2 * products >= readout.weight.shape[0] else None

    def readout(self, number: int) -> Readout | None:
        """The last map at a batch, if its outputs are those of the network and their loss is cross-entropy."""
        if number not in self._readouts:
            self._readouts[number] = readout_of(self.problem, self.problem.data[number])
        return self._readouts[number]


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


@dataclass(frozen=True, eq=False)
class InputMotion:
    """How the inputs of the last map move with what a map before it puts out.

    Attributes:
        moved: ``[group, member, feature, other member, input]``; None where they do not.
    """

    moved: Tensor | None

    @property
    def held_bytes(self) -> int:
        """Memory of its tensor."""
        return 0 if self.moved is None else self.moved.numel() * self.moved.element_size()


@dataclass(frozen=True, eq=False)
class Column:
    """What indexes the columns of a curvature.

    Attributes:
        piece: The piece of a map.
        grouping: Groups of its positions.
        readout: The last map of the network, where the motion of its inputs is all that is needed.
    """

    piece: Piece
    grouping: Grouping
    readout: Readout | None = None


def site_curvatures(
    hooked: HookedBatch, row: Piece, rows: Grouping, columns: Sequence[Column], tick: Callable[[], None]
) -> list[SiteCurvature | InputMotion]:
    """One product for every member and feature of the row, in all groups and for all columns at once.

    Args:
        hooked: A batch, with deltas at all sites.
        row: The piece that indexes the rows.
        rows: Its groups.
        columns: What indexes the columns, any number of times.
        tick: Is called after every product.
    """
    sites = list(dict.fromkeys(column.piece.use.site for column in columns if column.readout is None))
    made = [
        _Columns(hooked, row, rows, one) if one.readout is None else _Inputs(hooked, row, rows, one) for one in columns
    ]
    for member, place, tangent in hooked.tangents(row.use.site, row.features, rows):
        products = hooked.products_at(row.use.site, tangent, sites) if sites else {}
        for one in made:
            one.take(member, place, tangent, products)
        tick()
    return [one.found() for one in made]


class _Inputs:
    """The motion of the last map's inputs, as it comes in."""

    def __init__(self, hooked: HookedBatch, row: Piece, rows: Grouping, column: Column) -> None:
        assert column.readout is not None
        value = hooked.inputs(column.readout.use)
        assert value is not None
        self._hooked, self._site, self._value, self._columns = hooked, row.use.site, value, column.grouping
        shape = (rows.groups, rows.members, len(row.features), column.grouping.members, value.shape[-1])
        self._moved, self._moves = value.new_zeros(shape), False

    def take(self, member: int, place: int, tangent: Tensor, _: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """What one tangent moves."""
        change = self._hooked.jvp(self._site, tangent, self._value)
        if change is not None:
            self._moved[:, member, place] = self._columns.arrange(change)
            self._moves = True

    def found(self) -> InputMotion:
        """All of it."""
        return InputMotion(self._moved.detach() if self._moves else None)


class _Columns:
    """The curvature between two sites, as it comes in."""

    def __init__(self, hooked: HookedBatch, row: Piece, rows: Grouping, other: Column) -> None:
        like, column, columns = hooked.slope(row.use.site), other.piece, other.grouping
        shape = (rows.groups, rows.members, len(row.features), columns.members)
        self.column, self._columns, self._hooked, self._site = column, columns, hooked, row.use.site
        self._parts = [like.new_empty(*shape, len(column.features)) for _ in range(2)]
        self._inputs = hooked.inputs(column.use) if row.use.site != column.use.site else None
        self._kept = column.inputs if column.use.kind is not Kind.GAIN else column.features
        self._moved = None if self._inputs is None else like.new_zeros(*shape, len(self._kept))
        self._moves = False

    def take(self, member: int, place: int, tangent: Tensor, products: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        """The products with one tangent."""
        for target, found in zip(self._parts, products[self.column.use.site], strict=True):
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
    inputs = hooked.inputs(column.use)
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
