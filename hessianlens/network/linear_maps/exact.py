"""Exact blocks of every parameter that enters a network through a linear map, in any layer of any model.

A weight W that enters as ``z = a W`` acts on the loss through z alone, and z is linear in it. So with C the second
derivatives of the loss between the outputs of two maps, s and t,

    H[W_s, W_t] = sum_ij a_si a_tj^T (x) C_ij  +  sum_ij (da_tj / dz_si) (x) g_tj

over the positions i, j that the loss couples; the second sum, with ``g = dl/dz``, is there where what goes into t moves
with what comes out of s. Biases have ``a = 1``, gains of norms ``z = a * w``. Behind the last attention layer, and for
its queries, no two positions are coupled, and one product a feature of z gives C at all of them at once; elsewhere the
positions of a sequence are, and it takes one for every position and feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.errors import InputError
from hessianlens.network.linear_maps.carrier import Carrier
from hessianlens.network.linear_maps.curvature import SiteCurvature, grouping_of, site_curvatures
from hessianlens.network.linear_maps.elementwise import elementwise_behind
from hessianlens.network.linear_maps.grouping import Grouping, groupings
from hessianlens.network.linear_maps.piece import Piece, piece_of
from hessianlens.network.linear_maps.plan import BEHIND_BYTES, KEPT_BYTES, PARTS_HELD, Plan, TooMany
from hessianlens.network.linear_maps.readout import Readout, readout_norm, readout_of
from hessianlens.network.linear_maps.streamed import (
    Strip,
    held_strips,
    rows_at_once,
    streamed_norms,
    strips_by_products,
)
from hessianlens.network.linear_maps.tapped import Tapped, recorded
from hessianlens.network.linear_maps.terms import curved, moving, sides_of
from hessianlens.network.linear_maps.uses import Kind, Record
from hessianlens.network.rehearsal import sequences_of
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, Term, TokenSum
from hessianlens.problems import Block, Problem, layer_of


class LinearMaps:
    """The linear maps of a problem's network.

    Args:
        problem: From `hessianlens.problem`.

    Attributes:
        tick: Is called after every product.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._tapped: tuple[tuple[int, frozenset[int], bool], Tapped] | None = None
        self._readouts: dict[int, Readout | None] = {}
        self._norms: dict[tuple[str, str], float] = {}
        self._plans: dict[tuple[str, str], Plan | str] = {}
        self._joined: dict[int, list[Piece]] = {}
        self._groupings: dict[tuple[object, ...], tuple[Grouping, Grouping] | None] = {}
        self._carrier = Carrier(problem)
        self._curvatures: dict[tuple[object, ...], SiteCurvature] = {}
        self.tick: Callable[[], None] = _nothing

    # --- what can be afforded ----------------------------------------------------------------------------------------

    def plan(self, row: Block, column: Block, most_products: float) -> Plan | str:
        """How to find a block with no more than so many products; why not, in words, if it cannot be.

        Nothing but a forward pass is run unless the sizes allow it.

        Args:
            row: Block of the rows.
            column: Block of the columns.
            most_products: The most products that it may take.
        """
        known = self._plans.get((row.name, column.name))
        if known is None:
            try:
                known = self._planned(row, column, most_products)
            except InputError as error:  # a step that cannot be differentiated twice; not every product needs it
                known = f"at what its map puts out, {error}"
            if not isinstance(known, TooMany):
                self._plans[row.name, column.name] = known
        if isinstance(known, Plan) and known.products > most_products:
            return TooMany.products(known.products, most_products)
        return known

    def _planned(self, row: Block, column: Block, most_products: float) -> Plan | str:
        if (least := min(row.shape)) > most_products:  # a map puts out no fewer features than the block has on an axis
            return TooMany.products(least, most_products, "or more ")
        rows, columns = self._pieces(row), self._pieces(column)
        if isinstance(rows, str) or isinstance(columns, str):
            return rows if isinstance(rows, str) else str(columns)
        if rows[0].use.site > columns[0].use.site:
            other = self.plan(column, row, most_products)
            return other if isinstance(other, str) else replace(other, turned=True)
        chosen: list[tuple[Grouping, Grouping]] = []
        for number, (first, second) in enumerate(zip(rows, columns, strict=True)):
            sequences = max(1, sequences_of(self.problem.data[number]))
            options = [list(groupings(piece.use.outputs, sequences)) for piece in (first, second)]
            if not self.may_act_alone(row) or not self.may_act_alone(column):
                options = [[one for one in side if one.members > 1 or one.groups == sequences] for side in options]
            affordable = [one for one in options[0] if one.members * len(first.features) <= most_products]
            if not options[0]:
                return "what it feeds does not split into the sequences of a batch"
            if not affordable:
                return TooMany.products(min(g.members for g in options[0]) * len(first.features), most_products)
            found = self._grouping(number, (first, second), affordable, options[1])
            if found is None:
                if len(affordable) < len(options[0]):
                    return TooMany.products(options[0][-1].members * len(first.features), most_products)
                return "the loss couples sequences of a batch with each other"
            chosen.append(found)
        products = max(g.members * len(p.features) for (g, _), p in zip(chosen, rows, strict=True))
        return Plan(tuple(rows), tuple(columns), tuple(chosen), products, self._bytes(rows, columns, chosen))

    def _grouping(
        self, number: int, pieces: tuple[Piece, Piece], rows: list[Grouping], columns: list[Grouping]
    ) -> tuple[Grouping, Grouping] | None:
        """The finest groups that are not coupled; the same for a weight and its bias."""
        sides = tuple((piece.use.site, tuple(piece.features.tolist())) for piece in pieces)
        moving = () if pieces[0].use.site == pieces[1].use.site else (pieces[1].use.parameter,)
        key = (number, *sides, moving, tuple(rows), tuple(columns))
        if key not in self._groupings:
            self._groupings[key] = grouping_of(self._taps(number, pieces), *pieces, rows, columns)
        return self._groupings[key]

    def may_act_alone(self, block: Block) -> bool:
        """Attention couples what comes before it, so that only the last layer is worth a trial."""
        layer, attention = layer_of(block.name), [name for name in self.problem.blocks if ".attn." in name]
        if layer is None or not attention:
            return True
        stack = layer.rstrip("0123456789")
        same = [own for own in map(layer_of, attention) if own is not None and own.startswith(stack)]
        return all(int(layer[len(stack) :]) >= int(own[len(stack) :]) for own in same)

    def _bytes(
        self, rows: Sequence[Piece], columns: Sequence[Piece], chosen: Sequence[tuple[Grouping, Grouping]]
    ) -> int:
        total = 0
        for row, column, (first, second) in zip(rows, columns, chosen, strict=True):
            pairs = first.groups * first.members * second.members
            width = PARTS_HELD * len(column.features) + (len(column.inputs) if row.use.site != column.use.site else 0)
            total += pairs * len(row.features) * width
        return total * self.problem.dtype.itemsize

    @cached_property
    def _records(self) -> list[Record]:
        """How parameters enter, at each batch."""
        return [recorded(self.problem, batch) for batch in self.problem.data]

    def _pieces(self, block: Block) -> list[Piece] | str:
        pieces = []
        for record in self._records:
            use = record.only_use(block.parameter)
            if isinstance(use, str):
                return use
            if len(use.outputs) < 2:
                return "it is used outside of any sequence"
            piece = piece_of(block, use, self.problem.params[block.parameter])
            if piece is None:
                return "it joins other than some inputs with some outputs of its map"
            pieces.append(piece)
        return pieces

    def _taps(self, number: int, pieces: Sequence[Piece], products: int = 0) -> Tapped:
        """A batch with deltas at some maps; where many products follow, with the quadratic form of its last map."""
        sites = frozenset(piece.use.site for piece in pieces)
        readout = self._readout(number, max(sites), products)
        uses = {piece.use.site: piece.use for piece in (*self._joined.get(number, ()), *pieces)}
        if readout is not None:
            uses = {site: use for site, use in uses.items() if site < readout.use.site}
        key = number, frozenset(uses), readout is not None
        if self._tapped is None or self._tapped[0] != key:
            self._tapped = None  # before the next one is made: never two graphs at once
            self._tapped = key, Tapped(self.problem, self.problem.data[number], list(uses.values()), readout)
        return self._tapped[1]

    @contextmanager
    def together(self, blocks: Sequence[Block]) -> Iterator[None]:
        """A scope in which some blocks share one graph, because many pairs of them are asked for."""
        found = [pieces for block in blocks if not isinstance(pieces := self._pieces(block), str)]
        self._joined = {number: [pieces[number] for pieces in found] for number in range(len(self.problem.data))}
        try:
            yield
        finally:
            self._joined = {}
            self.release()

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

    def reads_out(self, block: Block) -> bool:
        """Whether a block is the weight or bias of the last map, whose Hessian the loss alone determines."""
        whole = tuple(block.shape) == tuple(self.problem.params[block.parameter].shape)
        pieces = self._pieces(block) if whole else ""
        if isinstance(pieces, str) or not self._is_last(pieces[0].use.site):
            return False
        found = [self.readout(number) for number in range(len(self.problem.data))]
        return all(one is not None and block.parameter in (one.use.parameter, one.shift) for one in found)

    def _is_last(self, site: int) -> bool:
        """Whether no weight enters behind a site."""
        return site >= self._last_site

    @cached_property
    def _last_site(self) -> int:
        return max((use.site for use in self._records[0].uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)), default=-1)

    def readout_norm(self, block: Block) -> float | None:
        """The norm of a block that reads out; None where its sum cancels."""
        readouts = [self.readout(number) for number in range(len(self.problem.data))]
        return readout_norm([one for one in readouts if one is not None], block.parameter)

    @contextmanager
    def watched(self, tick: Callable[[], None] | None) -> Iterator[None]:
        """A scope in which every product is told; graphs are released behind it."""
        before, self.tick = self.tick, tick or self.tick
        try:
            yield
        finally:
            self.tick = before
            self.release()

    def release(self) -> None:
        """Drop the graph that is kept for further blocks of the same maps."""
        self._tapped = None

    # --- the matrices ------------------------------------------------------------------------------------------------

    def operator(self, part: str, plan: Plan) -> StructuredOperator:
        """The exact matrix between two blocks; `part` is "full", "ggn" or "functional". Built when first used."""
        row, column = plan.row[0], plan.column[0]
        dtype, device = self.problem.dtype, self.problem.device

        def build(_: object, __: object) -> TokenSum:
            made = self._sum(part, plan)
            self.release()
            return made

        names = row.block.name, column.block.name
        grid = BlockGrid({names[0]: row.shape}, {names[1]: column.shape}, build, dtype, device)
        found = ArrangedGrid(grid, row.block.shape, column.block.shape, row.cut, column.cut)
        if not plan.turned:
            return found
        turned = found.adjoint()
        assert isinstance(turned, ArrangedGrid)
        return turned

    def slope(self, plan: Plan, number: int) -> Tensor:
        """The gradient of the loss at what the row's map puts out, ``[position, feature]``, at a batch."""
        return self._taps(number, (plan.row[number], plan.column[number]), plan.products).slope(
            plan.row[number].use.site
        )

    def _sum(self, part: str, plan: Plan) -> TokenSum:
        """Inputs by outputs of the row's map, against those of the column's."""
        terms = [term for number in range(len(plan.groups)) for term in self._terms(part, plan, number)]
        return TokenSum(terms, plan.row[0].shape, plan.column[0].shape, self.problem.dtype, self.problem.device)

    def _terms(self, part: str, plan: Plan, number: int) -> list[Term]:
        row, column = plan.row[number], plan.column[number]
        rows, columns = plan.groups[number]
        found = self.curvature(plan, number)
        tapped = self._taps(number, (row, column), plan.products)
        matrix = found.ggn + found.functional if part == "full" else getattr(found, part)
        with torch.no_grad():
            p, row_gain = sides_of(tapped, row, rows)
            q, column_gain = sides_of(tapped, column, columns)
            if row_gain is not None:
                matrix = matrix * row_gain[..., None, None]
            if column_gain is not None:
                matrix = matrix * column_gain[:, None, None]
            terms = [curved(matrix, p, q)]
            if part != "ggn" and found.moved is not None:
                slope = columns.arrange(tapped.slope(column.use.site))[..., column.features]
                moved = found.moved if row_gain is None else found.moved * row_gain[..., None, None]
                terms.append(moving(moved, p, slope, gain=column.use.kind is Kind.GAIN))
        return terms

    def curvature(self, plan: Plan, number: int) -> SiteCurvature:
        """Between what the two maps of a plan put out, at a batch."""
        if (passed := self._carried(plan, number)) is not None:
            return passed
        if (key := _key(plan, number)) not in self._curvatures:
            self._find([plan], number)
        return self._curvatures[key]

    def _find(self, plans: Sequence[Plan], number: int) -> None:
        """The curvature of plans with the same row, from the same products."""
        row, groups = plans[0].row[number], plans[0].groups[number][0]
        missing = {key: plan for plan in plans if (key := _key(plan, number)) not in self._curvatures}
        if not missing:
            return
        columns = [(plan.column[number], plan.groups[number][1]) for plan in missing.values()]
        tapped = self._taps(number, (row, *(column for column, _ in columns)), plans[0].products)
        found = site_curvatures(tapped, row, groups, columns, self.tick)
        size = sum(one.held_bytes for one in found)
        while self._curvatures and size + self._held() > KEPT_BYTES:
            del self._curvatures[next(iter(self._curvatures))]
        self._curvatures |= dict(zip(missing, found, strict=True))

    def _held(self) -> int:
        return sum(found.held_bytes for found in self._curvatures.values())

    def _carried(self, plan: Plan, number: int) -> SiteCurvature | None:
        """The curvature at one map from all that lies behind it, step by step; None if that has no simple form."""
        row, column, (grouping, _) = plan.row[number], plan.column[number], plan.groups[number]
        if row.use.site != column.use.site or grouping.members > 1 or row.use.site >= self._last_site:
            return None
        readout = self.readout(number)
        # A few features of a wide map are found sooner by products.
        if readout is None or not row.use.outputs[-1] <= len(readout.weight) <= 2 * len(row.features):
            return None

        def agrees(parts: tuple[Tensor, Tensor]) -> bool:
            return self._taps(number, (row,)).agrees(row.use.site, parts)

        whole = self._carrier.curvature(number, row.use, readout, agrees)
        if whole is None:
            return None
        if min(len(row.features), len(column.features)) < row.use.outputs[-1]:
            whole = whole[0][:, row.features][..., column.features], whole[1][:, row.features][..., column.features]
        return SiteCurvature(whole[0][:, None, :, None], whole[1][:, None, :, None], None)

    def norms(self, plan: Plan, parts: Sequence[str]) -> dict[str, float]:
        """Exact norms of parts, of a map's weight and bias together; in strips where no two positions are coupled."""
        if not plan.streams:
            return {part: float(self._sum(part, plan).frobenius_norm()) for part in parts}
        name = plan.row[0].block.name
        if not all((name, part) in self._norms for part in parts):
            (piece,) = plan.row
            alike = [piece, *self._alike(piece)]
            strips = self._strips(plan)
            tapped = self._taps(0, (piece,))
            for one, norms in zip(alike, streamed_norms(tapped, alike, strips, parts), strict=True):
                self._norms |= {(one.block.name, part): norm for part, norm in norms.items()}
        return {part: self._norms[name, part] for part in parts}

    def pair_norms(self, plans: Sequence[Plan], part: str) -> list[float]:
        """Norms of a part of several blocks; those with the same row share their products, as far as there is room."""
        found: dict[int, float] = {}
        for several in _by_row(plans):
            for number in range(len(plans[0].groups)):
                apart = [plans[k] for k in several if not plans[k].same_site]
                if apart:
                    self._find(apart, number)
            found |= {k: self.norms(plans[k], [part])[part] for k in several}
        return [found[k] for k in range(len(plans))]

    def _strips(self, plan: Plan) -> Iterator[Strip]:
        """The curvature at what a map puts out, a strip after the other; not held as a whole if that is much."""
        (piece,), ((grouping, _),) = plan.row, plan.groups
        size = rows_at_once(piece, grouping, self.problem.dtype.itemsize)
        if not plan.in_rows:
            return held_strips(self.curvature(plan, 0), size)
        found = self._strips_from_behind(piece, size)
        tapped = self._taps(0, (piece,), 0 if found else plan.products)
        return found or strips_by_products(tapped, piece, grouping, size, self.tick)

    def _strips_from_behind(self, piece: Piece, size: int) -> Iterator[Strip] | None:
        """The curvature at a map's outputs from that at the next map's, where that has fewer; None if it cannot be."""
        if (following := elementwise_behind(self.problem, self.problem.data[0], piece.use.site)) is None:
            return None
        parameter = following.use.parameter
        block = Block.of(f"all of {parameter}", parameter, self.problem.params[parameter])
        plan = self.plan(block, block, math.inf)
        fits = isinstance(plan, Plan) and plan.streams and plan.held_bytes <= BEHIND_BYTES
        if not isinstance(plan, Plan) or not fits or plan.products >= len(piece.features):
            return None
        return following.strips(self.curvature(plan, 0), self.slope(plan, 0), piece.features, size)

    def _alike(self, piece: Piece) -> list[Piece]:
        """Other blocks that feed the same outputs of the same map, whose norms cost nothing more."""
        here = {use.parameter for use in self._records[0].uses if use.site == piece.use.site}
        others = [block for block in self.problem.blocks.values() if block is not piece.block]
        found = [self._pieces(block) for block in others if block.parameter in here]
        each = [pieces[0] for pieces in found if isinstance(pieces, list)]
        return [one for one in each if torch.equal(one.features, piece.features)]


def _key(plan: Plan, number: int) -> tuple[object, ...]:
    """What the curvature between two maps is known by."""
    row, column = plan.row[number], plan.column[number]
    sides = [(piece.use.site, tuple(piece.features.tolist())) for piece in (row, column)]
    return number, *sides, () if plan.same_site else (column.use.parameter, tuple(column.inputs.tolist()))


def _by_row(plans: Sequence[Plan]) -> Iterator[list[int]]:
    """Numbers of plans with the same row and the same groups, as many as may be held together."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for k, plan in enumerate(plans):
        row = plan.row[0]
        key = (row.use.site, tuple(row.features.tolist()), *(rows for rows, _ in plan.groups))
        alike.setdefault(key, []).append(k)
    for several in alike.values():
        chosen: list[int] = []
        for k in several:
            if chosen and sum(plans[c].held_bytes for c in (*chosen, k)) > KEPT_BYTES:
                yield chosen
                chosen = []
            chosen.append(k)
        yield chosen


def _nothing() -> None:
    """What happens after a product that nobody watches."""
