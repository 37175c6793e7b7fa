"""Exact blocks of every parameter that enters a network through a linear map, in any layer of any model.

A weight W that enters as ``z = a W`` acts on the loss through z alone, and z is linear in it. So with C the second
derivatives of the loss between the outputs of two maps, s and t,

    H[W_s, W_t] = sum_ij a_si a_tj^T (x) C_ij  +  sum_ij (da_tj / dz_si) (x) g_tj

over the positions i, j that the loss couples; the second sum, with ``g = dl/dz``, is there where what goes into t moves
with what comes out of s. Biases have ``a = 1``, gains of norms ``z = a * w``; a table of embeddings is multiplied with
the one-hot vectors of its tokens, so that rows and columns of equal tokens are summed. Behind the last attention layer,
and for its queries, no two positions are coupled, and one product per feature of z gives C at all of them at once;
elsewhere the positions of a sequence are, and it takes one for every position and feature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from hessianlens.errors import Refusal
from hessianlens.network.base.question import Norms, probe_vectors
from hessianlens.network.base.uses import Piece
from hessianlens.network.routes.linear_map.backpropagated import BackpropagatedCurvature
from hessianlens.network.routes.linear_map.batch_graph import Graphs, SiteCurvature
from hessianlens.network.routes.linear_map.curvatures import Curvatures
from hessianlens.network.routes.linear_map.norms import (
    RowPanel,
    downstream_elementwise,
    row_panels,
    row_panels_by_products,
    rows_at_once,
    streamed_norms,
)
from hessianlens.network.routes.linear_map.plan import BEHIND_BYTES, KEPT_BYTES, LinearMapPlan, LinearMapPlanner
from hessianlens.network.routes.linear_map.readout import Readout, readout_norm
from hessianlens.network.routes.linear_map.terms import terms_between, terms_of_outputs, terms_with_outputs
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, Term, TokenSum
from hessianlens.problems import Block, Problem


class LinearMaps:
    """The linear maps of a problem's network.

    Args:
        problem: From `hessianlens.problem`.

    Attributes:
        graphs: Its graphs with deltas.
        planner: What makes plans.
        tick: Is called after every product.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.graphs = problem, Graphs(problem)
        backpropagated = BackpropagatedCurvature(problem, self.graphs)
        self.planner = LinearMapPlanner(problem, self.graphs, backpropagated)
        self.tick: Callable[[], None] = _nothing
        self._curvatures = Curvatures(self.graphs, backpropagated, lambda: self.planner.last_site, lambda: self.tick())
        self._norms: dict[tuple[str, str], tuple[float, Tensor]] = {}

    def plan(self, row: Block, column: Block, most_products: float) -> LinearMapPlan | Refusal:
        """How to find a block with no more than so many products; a refusal if it cannot be."""
        return self.planner.plan(row, column, most_products)

    def may_act_alone(self, block: Block) -> bool:
        """Whether what a block feeds may be seen by the loss position by position."""
        return self.planner.may_act_alone(block)

    def stands_last(self, block: Block) -> bool:
        """The same by names alone, without a forward pass."""
        return self.planner.stands_last(block)

    @contextmanager
    def together(self, blocks: Sequence[Block]) -> Iterator[None]:
        """A scope in which some blocks share one graph, because many pairs of them are asked for."""
        found = [pieces for block in blocks if not isinstance(pieces := self.planner.pieces(block), Refusal)]
        batches = range(len(self.problem.data))
        with self.graphs.together({number: [pieces[number] for pieces in found] for number in batches}):
            yield

    def reads_out(self, block: Block) -> bool:
        """Whether a block is the weight or bias of the last map, whose Hessian the loss alone determines."""
        if tuple(block.shape) != tuple(self.problem.params[block.parameter].shape):
            return False
        pieces = self.planner.pieces(block)
        if isinstance(pieces, Refusal) or pieces[0].use.site < self.planner.last_site:
            return False
        found = [self.graphs.readout(number) for number in range(len(self.problem.data))]
        return all(one is not None and block.parameter in (one.use.parameter, one.shift) for one in found)

    def readouts(self) -> list[Readout]:
        """The last map at each batch, of a network in which it makes the outputs."""
        found = [self.graphs.readout(number) for number in range(len(self.problem.data))]
        return [one for one in found if one is not None]

    def readout_norm(self, block: Block) -> float | None:
        """The norm of a block that reads out; None where its sum cancels."""
        return readout_norm(self.readouts(), block.parameter)

    @contextmanager
    def watched(self, tick: Callable[[], None] | None) -> Iterator[None]:
        """A scope in which every product is reported; graphs are released behind it."""
        before, self.tick = self.tick, tick or self.tick
        try:
            yield
        finally:
            self.tick = before
            self.graphs.release()

    # --- the matrices ------------------------------------------------------------------------------------------------

    def operator(self, part: str, plan: LinearMapPlan, keep_graph: bool = False) -> StructuredOperator:
        """The exact matrix between two blocks; `part` is "full", "ggn" or "functional". Built when first used."""
        row, column = plan.row[0], plan.column[0]
        dtype, device = self.problem.dtype, self.problem.device

        def build(_: object, __: object) -> TokenSum:
            made = self._sum(part, plan)
            if not keep_graph:
                self.graphs.release()
            return made

        names = row.block.name, column.block.name
        grid = BlockGrid({names[0]: row.shape}, {names[1]: column.shape}, build, dtype, device)
        found = ArrangedGrid(grid, row.block.shape, column.block.shape, row.cut, column.cut)
        if not plan.turned:
            return found
        turned = found.adjoint()
        assert isinstance(turned, ArrangedGrid)
        return turned

    def curvature(self, plan: LinearMapPlan, number: int) -> SiteCurvature:
        """Between what the two maps of a plan put out, at a batch."""
        return self._curvatures.between(plan, number)

    def slope(self, plan: LinearMapPlan, number: int) -> Tensor:
        """The gradient of the loss at what the row's map puts out, ``[position, feature]``, at a batch."""
        return self.graphs.hooked_batch(number, (plan.row[number], plan.column[number]), plan.products).slope(
            plan.row[number].use.site
        )

    def _sum(self, part: str, plan: LinearMapPlan) -> TokenSum:
        """Inputs by outputs of the row's map, against those of the column's."""
        return TokenSum(
            self.terms(part, plan), plan.row[0].shape, plan.column[0].shape, self.problem.dtype, self.problem.device
        )

    def terms(self, part: str, plan: LinearMapPlan) -> list[Term]:
        """The summands of the block between two pieces, inputs by outputs of each, rows first in the network."""
        return [term for number in range(len(plan.groups)) for term in self._terms(part, plan, number)]

    def _terms(self, part: str, plan: LinearMapPlan, number: int) -> list[Term]:
        row, column = plan.row[number], plan.column[number]
        if plan.reads_out:
            readout = self.graphs.readout(number)
            assert readout is not None
            if plan.row_reads_out:
                return terms_of_outputs(part, readout, row, column)
            motion = self._curvatures.motion(plan, number)
            hooked = self.graphs.hooked_batch(number, (row,), plan.products)
            return terms_with_outputs(part, readout, hooked, plan.sides(number), motion)
        found = self._curvatures.between(plan, number)
        hooked = self.graphs.hooked_batch(number, (row, column), plan.products)
        return terms_between(part, found, hooked, plan.sides(number))

    def norms(self, plan: LinearMapPlan, parts: Sequence[str]) -> Norms:
        """Exact norms of parts, of a map's weight and bias together; in strips where no two positions are coupled."""
        if not plan.streams:
            return self._norms_of_sums(plan, parts)
        name = plan.row[0].block.name
        if not all((name, part) in self._norms for part in parts):
            (piece,) = plan.row
            alike = [piece, *self._alike(piece)]
            strips = self._strips(plan)
            hooked = self.graphs.hooked_batch(0, (piece,))
            for one, norms in zip(alike, streamed_norms(hooked, alike, strips, parts, self.problem), strict=True):
                self._norms |= {(one.block.name, part): (norms.values[part], norms.matvecs[part]) for part in parts}
        values, matvecs = zip(*(self._norms[name, part] for part in parts), strict=True)
        return Norms(dict(zip(parts, values, strict=True)), dict(zip(parts, matvecs, strict=True)))

    def _norms_of_sums(self, plan: LinearMapPlan, parts: Sequence[str]) -> Norms:
        """From the sums over positions themselves."""
        block = (plan.row if plan.turned else plan.column)[0].block
        probes, operators = probe_vectors(block, self.problem), {p: self.operator(p, plan, True) for p in parts}
        return Norms(
            {part: float(operator.frobenius_norm()) for part, operator in operators.items()},
            {part: operator._matmat([probes])[0] for part, operator in operators.items()},
        )

    def share(self, plans: Sequence[LinearMapPlan], with_themselves: bool = False) -> Iterator[list[int]]:
        """Numbers of plans whose rows are the same, one group after the other, with the curvature that they share.

        Args:
            plans: The plans.
            with_themselves: Whether the curvature of maps with themselves is among it; norms may not need it at once.
        """
        for several in by_row(plans):
            for number in range(len(plans[0].groups)):
                chosen = [plans[k] for k in several if with_themselves or not plans[k].same_site]
                if found := [plan for plan in chosen if not plan.row_reads_out]:
                    self._curvatures.find(found, number)
            yield several

    def _strips(self, plan: LinearMapPlan) -> Iterator[RowPanel]:
        """The curvature at what a map puts out, a strip after the other; not held as a whole if that is much."""
        (piece,), ((grouping, _),) = plan.row, plan.groups
        size = rows_at_once(piece, grouping, self.problem.dtype.itemsize)
        if not plan.in_rows:
            return row_panels(self._curvatures.between(plan, 0), size)
        found = self._strips_backwards(piece, size)
        hooked = self.graphs.hooked_batch(0, (piece,), 0 if found else plan.products)
        return found or row_panels_by_products(hooked, piece, grouping, size, self.tick)

    def _strips_backwards(self, piece: Piece, size: int) -> Iterator[RowPanel] | None:
        """The curvature at a map's outputs from that at the next map's, where that has fewer; None if it cannot be."""
        if (following := downstream_elementwise(self.problem, self.problem.data[0], piece.use.site)) is None:
            return None
        parameter = following.use.parameter
        block = Block.of(f"all of {parameter}", parameter, self.problem.params[parameter])
        plan = self.plan(block, block, math.inf)
        fits = isinstance(plan, LinearMapPlan) and plan.streams and plan.held_bytes <= BEHIND_BYTES
        if not isinstance(plan, LinearMapPlan) or not fits or plan.products >= len(piece.features):
            return None
        return following.strips(self._curvatures.between(plan, 0), self.slope(plan, 0), piece.features, size)

    def _alike(self, piece: Piece) -> list[Piece]:
        """Other blocks that feed the same outputs of the same map, whose norms cost nothing more."""
        here = {use.parameter for use in self.planner.records[0].uses if use.site == piece.use.site}
        others = [block for block in self.problem.blocks.values() if block is not piece.block]
        found = [self.planner.pieces(block) for block in others if block.parameter in here]
        each = [pieces[0] for pieces in found if isinstance(pieces, list)]
        return [one for one in each if torch.equal(one.features, piece.features)]


def by_row(plans: Sequence[LinearMapPlan]) -> Iterator[list[int]]:
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
