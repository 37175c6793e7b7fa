"""What is known exactly about a problem's blocks, and at which price: one place to ask, one answer a block.

Two ways lead to an exact block. The closed form of the last attention layer knows its weights at the price of the
curvature behind it; the linear maps know any weight, bias or gain at the price of the curvature at what it feeds. What
can be afforded is decided from sizes, before anything but a forward pass is run.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from hessianlens.curvature import may_pay
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.all_data import on_all_data
from hessianlens.network.last_attention import ExactAttention, closed_form_cost, exact_attention
from hessianlens.network.linear_maps import LinearMaps, Plan
from hessianlens.network.rehearsal import forward_sizes, sequences_of
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, TokenSum
from hessianlens.problems import Block, Problem
from hessianlens.sizes import readable

CHEAP_PRODUCTS = 512
"""Products up to which a matrix is found exactly without being asked to."""
CHEAP_BYTES = 2**28
"""Memory up to which it is."""


WORTH = 8
"""Products that an exact norm may take for each one that a sampled norm would."""


@dataclass(frozen=True)
class Price:
    """What an exact answer may cost.

    Attributes:
        products: Products, each over all of the data.
        held_bytes: Memory.
    """

    products: float = CHEAP_PRODUCTS
    held_bytes: float = CHEAP_BYTES


ANY_PRICE = Price(math.inf, math.inf)
"""As long as it fits in memory."""


@dataclass(frozen=True, eq=False)
class Attention:
    """A block between weights of the last attention layer, by its closed form.

    What lies behind the layer is looked at once for all of its blocks, and not counted for one.
    """

    source: ExactAttention
    row: Block
    column: Block
    products: int = 0
    held_bytes: int = 0
    shared: Hashable = "what lies behind the last attention layer"

    @property
    def planned(self) -> int:
        """Products for what lies behind the layer, if nobody has looked at it."""
        return 0 if self.source.known else closed_form_cost(self.source.problem, [self.row, self.column]).products

    @property
    def waits(self) -> bool:
        """Whether that takes longer than some products by a tape."""
        problem = self.source.problem
        return not self.source.known and any(may_pay(problem, batch) for batch in problem.data)

    @property
    def why(self) -> str:
        """Why it is exact, in words."""
        return f"what lies behind {self.source.prefix}, the last attention layer, acts on every position alone"

    def operator(self, part: str) -> StructuredOperator:
        """The matrix."""
        return self.source.operator(part, self.row, self.column)

    def norms(self, parts: Sequence[str]) -> dict[str, float]:
        """Norms of parts; of a block with itself from inner products that these share."""
        if self.row is self.column:
            return self.source.norms(self.row, parts)
        return {part: float(self.operator(part).frobenius_norm()) for part in parts}


@dataclass(frozen=True, eq=False)
class Mapped:
    """A block between weights that enter through linear maps."""

    maps: LinearMaps
    plan: Plan

    @property
    def products(self) -> int:
        """Products that it takes."""
        return self.plan.products

    @property
    def planned(self) -> int:
        """The same."""
        return self.products

    @property
    def waits(self) -> bool:
        """Products do without it."""
        return True

    @property
    def held_bytes(self) -> int:
        """Memory that it takes."""
        return self.plan.held_bytes

    @property
    def why(self) -> str:
        """Why it is exact, in words."""
        return self.plan.why

    @property
    def shared(self) -> Hashable:
        """What its products depend on: blocks with the same row need them once."""
        return tuple((row.use.site, tuple(row.features.tolist())) for row in self.plan.row)

    def operator(self, part: str) -> StructuredOperator:
        """The matrix."""
        return self.maps.operator(part, self.plan)

    def norms(self, parts: Sequence[str]) -> dict[str, float]:
        """Norms of parts."""
        return self.maps.norms(self.plan, parts)


@dataclass(frozen=True, eq=False)
class ReadOut:
    """The weight or bias of the last map, with itself: only its norms."""

    maps: LinearMaps
    block: Block
    products: int = 0
    planned: int = 0
    held_bytes: int = 0
    shared: Hashable = None
    waits: bool = True

    @property
    def why(self) -> str:
        """Why it is exact, in words."""
        return "it makes the outputs, and the loss of every position is the cross-entropy of these"

    def operator(self, part: str) -> StructuredOperator:
        """The matrix, by products."""
        return self._mapped().operator(part)

    def norms(self, parts: Sequence[str]) -> dict[str, float]:
        """Norms of parts; by products where the sum would cancel."""
        found = self.maps.readout_norm(self.block)
        if found is None:
            return self._mapped().norms(parts)
        return {part: 0.0 if part == "functional" else found for part in parts}

    def _mapped(self) -> Mapped:
        plan = self.maps.plan(self.block, self.block, math.inf)
        assert isinstance(plan, Plan)
        return Mapped(self.maps, plan)


@dataclass(frozen=True, eq=False)
class Flat:
    """A block of which nothing depends on the rows, or nothing on the columns: zero with everything, without rounding.

    What does not change the outputs at any weights has no second derivative with any other weight either.
    """

    prefix: str
    row: Block
    column: Block
    like: Tensor
    products: int = 0
    planned: int = 0
    held_bytes: int = 0
    shared: Hashable = None
    waits: bool = False

    @property
    def why(self) -> str:
        """Why it is exact, in words."""
        return f"the same vector added to all keys of {self.prefix} changes none of its weights"

    def operator(self, part: str) -> StructuredOperator:
        """The matrix, zero."""
        shapes = [(1, block.numel) for block in (self.row, self.column)]
        dtype, device = self.like.dtype, self.like.device

        def build(_: Hashable, __: Hashable) -> TokenSum:
            return TokenSum([], shapes[0], shapes[1], dtype, device)

        def cut(tensor: Tensor) -> list[Tensor]:
            return [tensor.reshape(1, -1)]

        same = self.row.name == self.column.name
        grid = BlockGrid({self.row.name: shapes[0]}, {self.column.name: shapes[1]}, build, dtype, device, same)
        return ArrangedGrid(grid, self.row.shape, self.column.shape, cut, cut)

    def norms(self, parts: Sequence[str]) -> dict[str, float]:
        """Norms of parts."""
        return dict.fromkeys(parts, 0.0)


Answer = Attention | Mapped | ReadOut | Flat


class Exactly:
    """Exact blocks of a problem.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        refused: Why there are none, in words.
    """

    def __init__(self, problem: Problem, refused: str = "") -> None:
        self.problem, self.refused = problem, refused

    def answer(self, row: Block, column: Block, price: Price, norms_only: bool = False) -> Answer | str:
        """The block between two others exactly; why not, in words, if it cannot be had at a price.

        Args:
            row: Block of the rows.
            column: Block of the columns.
            price: The most that it may cost.
            norms_only: Whether its norms are enough, which may take less memory.
        """
        if self.refused:
            return self.refused
        if norms_only and row is column and ".attn." not in row.name and self.maps.reads_out(row):
            return ReadOut(self.maps, row)
        attention = self.affordable_attention((row, column), price)
        if isinstance(attention, ExactAttention):
            if attention.is_flat(row) or attention.is_flat(column):
                return Flat(attention.prefix, row, column, self.problem.params[row.parameter])
            if attention.covers((row, column)) and not (
                norms_only and self._better_mapped(attention, row, column, price)
            ):
                return Attention(attention, row, column)
            attention = ""
        plan = self.maps.plan(row, column, price.products)
        if isinstance(plan, str):
            return plan if not attention or plan in attention else f"{plan}; {attention}"
        held, free = plan.norm_bytes if norms_only else plan.held_bytes, available_bytes(self.problem.device)
        if held > SAFE_SHARE * free:
            return f"its closed form would hold {readable(held)}, and {readable(free)} are free"
        if held > price.held_bytes:
            return f"its closed form would hold {readable(held)}; method='exact' lets it"
        return Mapped(self.maps, plan)

    def _better_mapped(self, attention: ExactAttention, row: Block, column: Block, price: Price) -> bool:
        """The output projection of several heads makes many small blocks, which it does without as a linear map."""
        if row is not column or attention.single_head or not attention.is_output(row):
            return False
        plan = self.maps.plan(row, column, min(price.products, CHEAP_PRODUCTS))
        return isinstance(plan, Plan) and plan.streams and plan.held_bytes <= min(price.held_bytes, CHEAP_BYTES)

    @cached_property
    def maps(self) -> LinearMaps:
        """The linear maps of the network."""
        return LinearMaps(self.problem)

    @cached_property
    def attention(self) -> ExactAttention | str:
        """The closed form of the last attention layer; why there is none, in words."""
        return exact_attention(self.problem, self.maps)

    def affordable_attention(self, blocks: Sequence[Block], price: Price) -> ExactAttention | str:
        """The closed form of the last attention layer, if attention is asked for; why not, in words, or empty.

        Args:
            blocks: What is asked for.
            price: The most that the closed form may cost.
        """
        if self.refused:
            return self.refused
        asked = [block for block in blocks if ".attn." in block.name and self.maps.may_act_alone(block)]
        if not asked:
            return ""
        cost = closed_form_cost(self.problem, asked)
        free = available_bytes(self.problem.device)
        if cost.held_bytes > SAFE_SHARE * free:
            return f"its closed form would hold {readable(cost.held_bytes)}, and {readable(free)} are free"
        if cost.products > max(price.products, CHEAP_PRODUCTS) and "attention" not in vars(self):
            return ""
        found = self.attention
        return f"the closed form of attention does not fit: {found}" if isinstance(found, str) else found


def closed_form_bytes(problem: Problem, blocks: Sequence[Block], probes: int) -> int:
    """The most that exact norms of some blocks hold where nothing else is asked for, from sizes alone.

    Args:
        problem: From `hessianlens.problem`.
        blocks: What is asked for.
        probes: Random vectors that a block would get otherwise.
    """
    *positions, _ = forward_sizes(problem).outputs
    length, sequences = positions[-1] if positions else 1, sum(map(sequences_of, problem.data))
    found = 0
    for block in blocks:
        most = WORTH * min(probes, block.numel)
        features = max((size for size in block.shape if size <= most), default=0)
        together = length if length * features <= most else 1
        found += 3 * sequences * length * together * features**2 * problem.dtype.itemsize
    attention = [block for block in blocks if ".attn." in block.name]
    if not attention:
        return min(found, CHEAP_BYTES)
    cost = closed_form_cost(problem, attention)
    affordable = cost.products <= CHEAP_PRODUCTS and cost.held_bytes <= SAFE_SHARE * available_bytes(problem.device)
    return max(min(found, CHEAP_BYTES), cost.held_bytes if affordable else 0)


def exactly(problem: Problem) -> Exactly:
    """The exact blocks of a problem; what was found is kept with it."""
    if "exactly" not in problem.remembered:
        everything = on_all_data(problem)
        problem.remembered["exactly"] = (
            Exactly(problem, everything) if isinstance(everything, str) else Exactly(everything)
        )
    found: Exactly = problem.remembered["exactly"]
    return found
