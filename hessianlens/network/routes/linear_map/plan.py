"""How a block is to be found, and what that costs: decided from sizes, before anything but a forward pass is run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.errors import InputError, Refusal
from hessianlens.network.base import thresholds
from hessianlens.network.base.dry_run import sequences_of
from hessianlens.network.base.recognition import Grouping, groupings
from hessianlens.network.base.uses import Kind, OtherOrder, ParameterUses, Piece, Use, piece_of
from hessianlens.network.routes.linear_map.backpropagated import BackpropagatedCurvature
from hessianlens.network.routes.linear_map.batch_graph import Graphs, grouping_of, record_uses
from hessianlens.network.routes.linear_map.norms import streamed_bytes
from hessianlens.problems import Block, Problem, layer_of
from hessianlens.sizes import number_of

KEPT_BYTES = 2**28
"""Curvature that is held at once, and kept for further blocks of the same maps."""
BEHIND_BYTES = 2**29
"""The most that the curvature at the next map may take where it stands in for that at a map itself."""
PARTS_HELD = 3
"""Gauss-Newton and functional part, and their sum."""


@dataclass(frozen=True, eq=False)
class LinearMapPlan:
    """How the block between two pieces is found, and what that costs.

    Attributes:
        row: The piece that indexes the rows.
        column: The piece that indexes the columns.
        groups: Groups of positions of both, at each batch.
        products: Products that it takes, each over all of the data.
        held_bytes: What it holds.
        turned: Whether rows and columns are exchanged in the end: here the rows come first in the network.
        reads_out: Whether the columns are those of the network's last map, whose curvature the loss alone determines.
        backpropagated: Maps whose curvature comes together from the end of the network, step by step, where it does;
            `products` is then how many HVPs would be as much work.
    """

    row: tuple[Piece, ...]
    column: tuple[Piece, ...]
    groups: tuple[tuple[Grouping, Grouping], ...]
    products: int
    held_bytes: int
    turned: bool = False
    reads_out: bool = False
    backpropagated: frozenset[int] = frozenset()

    @property
    def row_reads_out(self) -> bool:
        """Whether rows and columns are both those of the last map, its weight or its bias."""
        return self.reads_out and self.products == 0

    def sides(self, number: int) -> tuple[tuple[Piece, Grouping], tuple[Piece, Grouping]]:
        """The pieces of rows and columns with the groups of their positions, at a batch."""
        return (self.row[number], self.groups[number][0]), (self.column[number], self.groups[number][1])

    @property
    def same_site(self) -> bool:
        """Whether rows and columns belong to the same map."""
        return self.row[0].use.site == self.column[0].use.site

    @property
    def streams(self) -> bool:
        """Whether its norms can be found row by row: a block with itself, no positions coupled, in a single batch."""
        (first, _), *others = self.groups
        itself = self.row[0].block is self.column[0].block and self.row[0].use.kind is not Kind.LOOK_UP
        return not others and first.members == 1 and itself

    @property
    def in_rows(self) -> bool:
        """Whether its norms are found row by row, because the curvature as a whole would take much memory."""
        return self.held_bytes > KEPT_BYTES and self.streams

    @property
    def norm_bytes(self) -> int:
        """What its norms hold."""
        if not self.in_rows:
            return self.held_bytes
        return streamed_bytes(self.row[0], self.groups[0][0], PARTS_HELD) + BEHIND_BYTES

    @property
    def why(self) -> str:
        """The reason why it is exact."""
        together = max(first.members for first, _ in self.groups)
        axes, groups = self.row[0].use.outputs[:-1], self.groups[0][0].groups
        one = "a sequence" if len(axes) == 1 or groups in axes else "an example, in several sequences,"
        which = f"the {together} positions of {one}"
        if looked_up(self.row) and len(self.row[0].inputs) == together:
            which = f"the {together} rows of the table"
        alone = "the loss couples no two positions of its output"
        how = alone if together == 1 else f"{which} are taken together"
        entry = "by look-up, a linear map of one-hot vectors" if looked_up(self.row) else "through a linear map"
        work = number_of(self.products, "HVP")
        if self.backpropagated:
            return (
                f"it enters {entry}, and {how}; its curvature is backpropagated from the loss, as much work as {work}"
            )
        return f"it enters {entry}, and {how}; {work}"


def looked_up(pieces: Sequence[Piece]) -> bool:
    """Whether a block is a table of embeddings."""
    return pieces[0].use.kind is Kind.LOOK_UP


def too_many_hvps(needed: float, limit: float, more: str = "") -> Refusal:
    """The refusal of a block that needs more HVPs than the limit; a higher one would change it."""
    reason = f"exact needs {needed:.0f} {more}HVPs, above the limit of {limit:.0f}; method='exact' allows it"
    return Refusal(reason, at_this_price=True, hvps=needed)


IN_SEVERAL_PLACES = Refusal("it is used in several places")
"""The refusal of a block whose parameter enters more than once: another route adds up the pairs of its uses."""


class LinearMapPlanner:
    """Plans for the blocks of a problem; nothing but a forward pass is run unless the sizes allow it.

    Args:
        problem: From `hessianlens.problem`.
        graphs: Its graphs.
        backpropagated: Its curvature from the end of the network, and what that costs.
    """

    def __init__(self, problem: Problem, graphs: Graphs, backpropagated: BackpropagatedCurvature) -> None:
        self.problem, self._graphs, self._backpropagated = problem, graphs, backpropagated
        self._plans: dict[tuple[str, str], LinearMapPlan | Refusal] = {}
        self._groupings: dict[tuple[object, ...], tuple[Grouping, Grouping] | None] = {}

    def plan(self, row: Block, column: Block, most_products: float) -> LinearMapPlan | Refusal:
        """How to find a block with no more than so many products; a refusal if it cannot be.

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
            except OtherOrder as error:
                known = Refusal(str(error))
            except InputError as error:  # a step that cannot be differentiated twice; not every product needs it
                known = Refusal(f"at what its map puts out, {error}")
            if isinstance(known, LinearMapPlan) or not known.at_this_price:
                self._plans[row.name, column.name] = known
        if isinstance(known, LinearMapPlan) and known.products > most_products:
            return too_many_hvps(known.products, most_products)
        return known

    def _planned(self, row: Block, column: Block, most_products: float) -> LinearMapPlan | Refusal:
        if (
            least := min(row.shape, default=1)
        ) > most_products:  # a map puts out no fewer features than the block has on an axis
            return too_many_hvps(least, most_products, "or more ")
        rows, columns = self.pieces(row), self.pieces(column)
        if isinstance(rows, Refusal):
            return rows
        if isinstance(columns, Refusal):
            return columns
        if _comes_later(rows[0], columns[0]):
            other = self.plan(column, row, most_products)
            return other if isinstance(other, Refusal) else replace(other, turned=True)
        return self._between(rows, columns, most_products)

    def between(self, rows: list[Piece], columns: list[Piece], most_products: float) -> LinearMapPlan | Refusal:
        """The same between two uses of blocks, each as its pieces at each batch; the last map in closed form."""
        if _comes_later(rows[0], columns[0]):
            other = self.between(columns, rows, most_products)
            return other if isinstance(other, Refusal) else replace(other, turned=True)
        readouts = [self._graphs.readout(number) for number in range(len(columns))]
        if not all(one is not None and one.makes_outputs(p) for one, p in zip(readouts, columns, strict=True)):
            return self._between(rows, columns, most_products)
        if not all(one is not None and one.makes_outputs(p) for one, p in zip(readouts, rows, strict=True)):
            found = self._between(rows, columns, most_products, reads_out=True)
            return found if isinstance(found, Refusal) else replace(found, reads_out=True)
        whole = tuple(Grouping(1, _numbers(piece.use)) for piece in columns)
        held = sum(2 * len(one.chances) * one.chances.shape[1] for one in readouts if one is not None)
        pairs = tuple((one, one) for one in whole)
        return LinearMapPlan(tuple(rows), tuple(columns), pairs, 0, held * self.problem.dtype.itemsize, reads_out=True)

    def _between(
        self, rows: list[Piece], columns: list[Piece], most_products: float, reads_out: bool = False
    ) -> LinearMapPlan | Refusal:
        chosen: list[tuple[Grouping, Grouping]] = []
        backwards: list[float] = []
        for number, (first, second) in enumerate(zip(rows, columns, strict=True)):
            sequences = max(1, sequences_of(self.problem.data[number]))
            options = [list(groupings(piece.use.outputs, sequences)) for piece in (first, second)]
            if looked_up(rows) or looked_up(columns):  # positions are embedded once for all sequences
                options = [_with_whole_batch(found) for found in options]
            if not self._may_act_alone(rows) or not self._may_act_alone(columns):
                options = [[one for one in side if one.members > 1 or one.groups == sequences] for side in options]
            other = math.inf if reads_out else self._hvps_backwards(number, first, second, sequences)
            affordable = [one for one in options[0] if _hvps(one, first, other) <= most_products]
            if not options[0]:
                return Refusal("its output does not split into the sequences of a batch")
            if not affordable:
                return too_many_hvps(min(_hvps(g, first, other) for g in options[0]), most_products)
            found = self._grouping(number, (first, second), affordable, options[1])
            if found is None:
                if len(affordable) < len(options[0]):
                    return too_many_hvps(_hvps(options[0][-1], first, other), most_products)
                if all(one.groups != sequences for one in options[0]):
                    return Refusal("the loss couples the rows of its output, which are not the sequences of a batch")
                return Refusal("the loss couples its outputs across the sequences of a batch")
            chosen.append(found)
            together = 1 if self._once_for_all(first, sequences) else sequences
            backwards.append(other if found[0].groups == together and not found[0].members_first else math.inf)
        steps = list(zip(chosen, rows, backwards, strict=True))
        products = max(_hvps(group, piece, other) for (group, _), piece, other in steps)
        cheaper = any(_hvps(group, piece, other) < _hvps(group, piece) for (group, _), piece, other in steps)
        backpropagated = self._backpropagated.together(0, rows[0].use) if cheaper else frozenset()
        held = self._bytes(rows, columns, chosen, reads_out)
        if backpropagated:
            uses = [(row.use, column.use) for row, column in zip(rows, columns, strict=True)]
            held = max(held, self._backpropagated.peak_bytes(uses))
        whole = tuple(rows), tuple(columns), tuple(chosen)
        return LinearMapPlan(*whole, math.ceil(products), held, backpropagated=backpropagated)

    def _hvps_backwards(self, number: int, row: Piece, column: Piece, sequences: int) -> float:
        """What the curvature between two maps costs from the end of the network; asked where HVPs would be many."""
        total = int(torch.Size(row.use.outputs[:-1]).numel())
        positions, rest = divmod(total, sequences)
        if self._once_for_all(row, sequences):
            positions, rest = total, int(column.use.site != row.use.site)
        if rest or positions == 1 or positions * len(row.features) < thresholds.BACKPROPAGATION_MIN_HVPS:
            return math.inf
        found = self._backpropagated.hvps(number, row.use, column.use, positions)
        return math.inf if found is None else found

    def _once_for_all(self, piece: Piece, sequences: int) -> bool:
        """Whether a table is looked up once for all sequences, as by positions, or stands for its rows itself."""
        use = piece.use
        axes = [size for size in use.outputs[:-1] if size > 1]
        return use.kind is Kind.LOOK_UP and (use.whole_table or (sequences > 1 and len(axes) == 1))

    def _grouping(
        self, number: int, pieces: tuple[Piece, Piece], rows: list[Grouping], columns: list[Grouping]
    ) -> tuple[Grouping, Grouping] | None:
        """The finest groups that are not coupled; the same for a weight and its bias."""
        sides = tuple((piece.use.site, tuple(piece.features.tolist())) for piece in pieces)
        moving = () if pieces[0].use.site == pieces[1].use.site else (pieces[1].use.parameter,)
        key = (number, *sides, moving, tuple(rows), tuple(columns))
        if key not in self._groupings:
            self._groupings[key] = grouping_of(self._graphs.hooked_batch(number, pieces), *pieces, rows, columns)
        return self._groupings[key]

    def may_act_alone(self, block: Block) -> bool:
        """Attention couples what comes before it, so that only the last layer is worth a trial."""
        if not self.stands_last(block):
            return False
        pieces = self.pieces(block) if self._attentions else IN_SEVERAL_PLACES
        return isinstance(pieces, Refusal) or not looked_up(pieces)

    def _may_act_alone(self, pieces: Sequence[Piece]) -> bool:
        return not (self._attentions and looked_up(pieces)) and self.stands_last(pieces[0].block)

    def stands_last(self, block: Block) -> bool:
        """The same by names alone, without a forward pass."""
        layer, attention = layer_of(block.name), self._attentions
        if layer is None or not attention:
            return True
        stack = layer.rstrip("0123456789")
        same = [own for own in map(layer_of, attention) if own is not None and own.startswith(stack)]
        return all(int(layer[len(stack) :]) >= int(own[len(stack) :]) for own in same)

    @cached_property
    def _attentions(self) -> list[str]:
        return [name for name in self.problem.blocks if ".attn." in name]

    def _bytes(
        self,
        rows: Sequence[Piece],
        columns: Sequence[Piece],
        chosen: Sequence[tuple[Grouping, Grouping]],
        reads_out: bool,
    ) -> int:
        total = 0
        for row, column, (first, second) in zip(rows, columns, chosen, strict=True):
            pairs = first.groups * first.members * second.members
            width = PARTS_HELD * len(column.features) + (len(column.inputs) if row.use.site != column.use.site else 0)
            if reads_out:
                width = len(column.inputs)
                total += 2 * _numbers(column.use) * len(column.features)
            total += pairs * len(row.features) * width
        return total * self.problem.dtype.itemsize

    @cached_property
    def records(self) -> list[ParameterUses]:
        """How parameters enter, at each batch."""
        return [record_uses(self.problem, batch) for batch in self.problem.data]

    def pieces(self, block: Block) -> list[Piece] | Refusal:
        """A block as a piece of its map, at each batch; a refusal if it is none."""
        found = self.uses(block)
        if isinstance(found, Refusal):
            return found
        return found[0] if len(found) == 1 else IN_SEVERAL_PLACES

    def uses(self, block: Block) -> list[list[Piece]] | Refusal:
        """A block as a piece of every map that its parameter enters through, in order, at each batch.

        Rows of a table are those that are looked up anywhere, unless the table is multiplied with too.
        """
        by_batch = [record.of(block.parameter) for record in self.records]
        refusals = [found for found in by_batch if isinstance(found, Refusal)]
        if refusals:
            return refusals[0]
        given = [found for found in by_batch if not isinstance(found, Refusal)]
        if any([use.kind for use in found] != [use.kind for use in given[0]] for found in given):
            return Refusal("it is used in other places at another batch")
        if any(len(use.outputs) < 2 for found in given for use in found):
            return Refusal("it is used outside of any sequence")
        like = self.problem.params[block.parameter]
        uses = [self._by_table(list(same), like) for same in zip(*given, strict=True)]
        tokens = [use.rows.reshape(-1) for same in uses for use in same if use.rows is not None]
        if all(same[0].kind is Kind.LOOK_UP for same in uses):
            occurring = _distinct(torch.cat(tokens), like)
        else:
            occurring = torch.arange(len(like), device="cpu")
        pieces = [[piece_of(block, use, like, occurring) for use in same] for same in uses]
        if any(piece is None for same in pieces for piece in same):
            return Refusal("it is not the weights from some inputs to some outputs of its map")
        return [[piece for piece in same if piece is not None] for same in pieces]

    def _by_table(self, uses: list[Use], like: Tensor) -> list[Use]:
        if self._attentions and all(use.rows is not None and len(like) < use.rows.shape[-1] for use in uses):
            return [use.by_table(like) for use in uses]
        return uses

    @cached_property
    def last_site(self) -> int:
        """The last map of the network."""
        return max((use.site for use in self.records[0].uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)), default=-1)


def _hvps(grouping: Grouping, piece: Piece, backwards: float = math.inf) -> float:
    """HVPs for the curvature at a map, or as much work; coupled positions may be had from the end of the network."""
    by_products = grouping.members * len(piece.features)
    return by_products if grouping.members == 1 else min(by_products, backwards)


def _comes_later(row: Piece, column: Piece) -> bool:
    """Whether rows and columns are to be exchanged, so that what goes into the columns' map may move with the rows'.

    Nothing moves what a table is multiplied with. Of two tables the one with fewer positions gives the rows.
    """
    if row.use.kind is column.use.kind is Kind.LOOK_UP:
        return _numbers(row.use) > _numbers(column.use)
    return row.use.site > column.use.site


def _numbers(use: Use) -> int:
    return int(torch.Size(use.outputs).numel())


def _with_whole_batch(found: list[Grouping]) -> list[Grouping]:
    """The same with all positions of a batch in one group, which takes the most HVPs."""
    last = found[-1]
    return found if last.groups == 1 else [*found, Grouping(1, found[0].groups * found[0].members)]


def _distinct(rows: Tensor, table: Tensor) -> Tensor:
    """Rows that occur, in order; all of them, where no numbers are known."""
    if rows.is_meta:
        return torch.arange(len(table), device="cpu")
    found = rows.unique().cpu()
    return found[found >= 0]
