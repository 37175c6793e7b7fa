"""Blocks of parameters that enter in several places, such as an embedding that is the unembedding too.

A parameter W that enters a network k times is one tensor in k places. With ``H[W_u, W_v]`` the block between two of its
uses, as if these were parameters of their own, the chain rule adds up the pairs,

    H[W, W] = sum_u H[W_u, W_u] + sum_{u < v} (H[W_u, W_v] + H[W_u, W_v]^T),    H[W, W'] = sum_uv H[W_u, W'_v],

and every summand is a block between two linear maps. With e the look-up of an embedding and u the map that makes the
logits, ee takes one HVP per feature and coupled position, eu the motion of the last map's inputs along the same
vectors, and uu none: ``sum_n y_n y_n^T (x) w_n (diag(p_n) - p_n p_n^T)``, with rows and columns exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessianlens.errors import InputError, Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base.question import Cost, Norms, Question, probe_vectors
from hessianlens.network.base.uses import Kind, OtherOrder, Piece
from hessianlens.network.routes.linear_map.exact import LinearMaps, by_row
from hessianlens.network.routes.linear_map.plan import LinearMapPlan, too_many_hvps
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, Term, TokenSum
from hessianlens.problems import Block, Problem
from hessianlens.sizes import number_of, readable

_DENSE_MAX_ENTRIES = 2**24
"""Entries of a block whose norm is that of its dense form: inner products of many terms would take longer."""
_CANCELLED = 1e-6
"""Share of the squares of its summands below which a squared norm has lost too many digits."""
_PANEL_BYTES = 2**26
"""Columns that are held at once."""

_EXCHANGED_ROWS = str.maketrans("ab", "ba")
_EXCHANGED_COLUMNS = str.maketrans("cd", "dc")
_TRANSPOSED = str.maketrans("abcd", "cdab")

NOT_SEVERAL = Refusal("")
"""Both parameters enter in one place only."""


@dataclass(frozen=True, eq=False)
class UsesPlan:
    """How a block is found as a sum over pairs of uses, and what that costs.

    Attributes:
        row: The block of the rows.
        column: The block of the columns.
        pairs: A plan for every pair of uses; of two that are each other's transpose one.
        products: HVPs that it takes, each over all of the data: pairs with the same first map share theirs.
        held_bytes: What it holds.
    """

    row: _Side
    column: _Side
    pairs: tuple[LinearMapPlan, ...]
    products: int
    held_bytes: int

    @property
    def is_diagonal(self) -> bool:
        """Whether it is a block with itself."""
        return self.row.block is self.column.block

    @property
    def why(self) -> str:
        """The reason why it is exact."""
        places = max(len(self.row.uses), len(self.column.uses))
        read_out = any(pair.row_reads_out for pair in self.pairs)
        ends = ", and that of the last map with itself is known from the outputs alone" if read_out else ""
        return (
            f"it enters in {places} places, each a linear map, and its block is the sum of those between each two of "
            f"them{ends}; {number_of(self.products, 'HVP')}"
        )


class SeveralUsesRoute:
    """Sums over pairs of the uses of parameters, at the price of the blocks between them.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        maps: The linear maps of its network.
    """

    name = "the sum over the uses of a parameter"

    def __init__(self, problem: Problem, maps: LinearMaps) -> None:
        self.problem, self.maps = problem, maps
        self._plans: dict[tuple[str, str], UsesPlan | Refusal] = {}

    def cost(self, question: Question) -> Cost | Refusal:
        """One HVP per output feature of every map that comes first in a pair, and per position that is coupled."""
        plan = self._plan(question.row, question.column, question.limits.hvps)
        if isinstance(plan, Refusal):
            return plan
        free = available_bytes(self.problem.device)
        if plan.held_bytes > SAFE_SHARE * free:
            return Refusal(f"its closed form would hold {readable(plan.held_bytes)}, and {readable(free)} are free")
        if plan.held_bytes > question.limits.held_bytes:
            held = readable(plan.held_bytes)
            return Refusal(f"its closed form would hold {held}; method='exact' allows it", at_this_price=True)
        return Cost(plan.why, plan.products, plan.products, plan.held_bytes)

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix."""
        plan = self._known(question)
        return self._arranged(plan, lambda: self._sums(plan, [part])[part])

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """Norms of parts, all from the same HVPs."""
        plan, probes = self._known(question), probe_vectors(question.column, self.problem)
        sums = self._sums(plan, parts)
        operators = {part: self._arranged(plan, partial(sums.__getitem__, part)) for part in parts}
        return Norms(
            {part: _norm(own) for part, own in sums.items()},
            {part: operator._matmat([probes])[0] for part, operator in operators.items()},
        )

    # --- the plan ----------------------------------------------------------------------------------------------------

    def _known(self, question: Question) -> UsesPlan:
        plan = self._plan(question.row, question.column, float("inf"))
        assert isinstance(plan, UsesPlan)
        return plan

    def _plan(self, row: Block, column: Block, most_products: float) -> UsesPlan | Refusal:
        if (least := min((*row.shape, *column.shape), default=1)) > most_products:
            return too_many_hvps(least, most_products, "or more ")
        key = row.name, column.name
        found = self._plans.get(key) or self._planned(row, column, most_products)
        if isinstance(found, UsesPlan) or not found.at_this_price:
            self._plans[key] = found
        if isinstance(found, UsesPlan) and found.products > most_products:
            return too_many_hvps(found.products, most_products)
        return found

    def _planned(self, row: Block, column: Block, most_products: float) -> UsesPlan | Refusal:
        sides = [_Side.of(self.maps, block) for block in (row, column)]
        refusals = [side for side in sides if isinstance(side, Refusal)]
        if refusals:
            return refusals[0]
        rows, columns = (side for side in sides if isinstance(side, _Side))
        if len(rows.uses) == len(columns.uses) == 1:
            return NOT_SEVERAL
        pairs: list[LinearMapPlan] = []
        for k, first in enumerate(rows.uses):
            for second in columns.uses[k if row is column else 0 :]:
                try:
                    found = self.maps.planner.between(first, second, most_products)
                except OtherOrder as error:
                    return Refusal(str(error))
                except InputError as error:  # a step that cannot be differentiated twice
                    return Refusal(f"at what its maps put out, {error}")
                if isinstance(found, Refusal):
                    return found
                pairs.append(found)
        groups = [[pairs[k] for k in several] for several in by_row(pairs)]
        products = sum(max(pair.products for pair in group) for group in groups)
        itemsize, numel = self.problem.dtype.itemsize, sum(side.one_hot_numel for side in (rows, columns))
        held = sum(pair.held_bytes for pair in pairs) + numel * itemsize
        return UsesPlan(rows, columns, tuple(pairs), products, held)

    # --- the sum -----------------------------------------------------------------------------------------------------

    def _sums(self, plan: UsesPlan, parts: Sequence[str]) -> dict[str, TokenSum]:
        """By part, the sum over all pairs of uses, in the layout of the blocks."""
        terms: dict[str, list[Term]] = {part: [] for part in parts}
        for several in self.maps.share(plan.pairs, with_themselves=True):
            for part in parts:
                terms[part] += [term for k in several for term in self._terms(plan, plan.pairs[k], part)]
        self.maps.graphs.release()
        shapes, dtype, device = (plan.row.shape, plan.column.shape), self.problem.dtype, self.problem.device
        return {part: TokenSum(found, *shapes, dtype, device) for part, found in terms.items()}

    def _terms(self, plan: UsesPlan, pair: LinearMapPlan, part: str) -> list[Term]:
        """The terms of a pair of uses; those of its transpose too, where a block with itself has both."""
        sides = (plan.column, plan.row) if pair.turned else (plan.row, plan.column)
        found = self.maps.terms(part, pair)
        if sides[0].exchanges(pair.row[0]):
            found = [term.relabel(_EXCHANGED_ROWS) for term in found]
        if sides[1].exchanges(pair.column[0]):
            found = [term.relabel(_EXCHANGED_COLUMNS) for term in found]
        transposed = [term.relabel(_TRANSPOSED) for term in found]
        if plan.is_diagonal and pair.row[0].use is not pair.column[0].use:
            return found + transposed
        return transposed if pair.turned else found

    def _arranged(self, plan: UsesPlan, make: Callable[[], TokenSum]) -> ArrangedGrid:
        """The matrix on the blocks, made when it is first used."""
        names, dtype, device = (plan.row.block.name, plan.column.block.name), self.problem.dtype, self.problem.device
        grid = BlockGrid({names[0]: plan.row.shape}, {names[1]: plan.column.shape}, lambda *_: make(), dtype, device)
        return ArrangedGrid(grid, plan.row.block.shape, plan.column.block.shape, plan.row.cut, plan.column.cut)


@dataclass(frozen=True, eq=False)
class _Side:
    """A block and its uses, in a layout that all of them share: inputs by outputs, or a block as it is stored.

    Attributes:
        uses: Its pieces, by use and batch.
        as_stored: Whether it is the block as it is stored, which some uses multiply with transposed.
    """

    uses: tuple[list[Piece], ...]
    as_stored: bool

    @classmethod
    def of(cls, maps: LinearMaps, block: Block) -> _Side | Refusal:
        """A block; a refusal if its uses have no common layout."""
        uses = maps.planner.uses(block)
        if isinstance(uses, Refusal):
            return uses
        first, pieces = uses[0][0], [piece for same in uses for piece in same]
        if len({piece.use.kind for piece in pieces}) == 1 and all(_same_order(piece, first) for piece in pieces):
            return cls(tuple(uses), False)
        if all(piece.weighs and piece.use.places is None for piece in pieces):
            return cls(tuple(uses), True)
        return Refusal("it is used in several places, rearranged in different ways")

    @property
    def block(self) -> Block:
        """The block."""
        return self.uses[0][0].block

    @property
    def shape(self) -> tuple[int, int]:
        """Of the layout."""
        if not self.as_stored:
            return self.uses[0][0].shape
        rows, columns = self.block.shape
        return rows, columns

    def cut(self, tensor: Tensor) -> list[Tensor]:
        """A tensor shaped as the block, in this layout."""
        return [tensor] if self.as_stored else self.uses[0][0].cut(tensor)

    def exchanges(self, piece: Piece) -> bool:
        """Whether inputs and outputs of a use are columns and rows of the layout."""
        return self.as_stored and piece.use.kind is Kind.OUT_IN

    @property
    def one_hot_numel(self) -> int:
        """Entries of the one-hot vectors that its tables are multiplied with."""
        tables = [piece for same in self.uses for piece in same if piece.use.rows is not None]
        return sum(piece.use.rows.numel() * len(piece.inputs) for piece in tables if piece.use.rows is not None)


def _same_order(piece: Piece, first: Piece) -> bool:
    if piece.order is None or first.order is None:
        return piece.order is first.order
    return torch.equal(piece.order, first.order)


def _norm(matrix: TokenSum) -> float:
    """The Frobenius norm: of the entries where these are few, from inner products of terms, or column by column."""
    rows, columns = matrix.shape
    if rows * columns <= _DENSE_MAX_ENTRIES:
        return float(matrix.to_dense().norm())
    own = [
        TokenSum([term], matrix._out_shape[0], matrix._in_shape[0], matrix.dtype, matrix.device)
        for term in matrix.terms
    ]
    largest, found = max((float(one.frobenius_norm()) for one in own), default=0.0), float(matrix.frobenius_norm())
    if found**2 > _CANCELLED * largest**2 or largest == 0:
        return found
    width = max(1, _PANEL_BYTES // (rows * matrix.dtype.itemsize))
    square = 0.0
    for start in range(0, columns, width):
        numbers = torch.arange(start, min(start + width, columns), device=matrix.device)
        unit = torch.zeros(columns, len(numbers), dtype=matrix.dtype, device=matrix.device)
        unit[numbers, numbers - start] = 1
        panel = matrix._matmat([unit.reshape(*matrix._in_shape[0], -1)])[0]
        square += float(panel.double().square().sum())
    return square**0.5
