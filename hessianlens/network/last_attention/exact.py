"""Exact blocks of the last attention layer of a problem, under the names and in the order of its own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from hessianlens.models.adapters.scope import differentiable_twice
from hessianlens.network.last_attention.behind import (
    InNetworkHessian,
    PositionDerivatives,
    in_network_hessian,
    position_curvature,
    position_derivatives,
)
from hessianlens.network.last_attention.part_norms import part_norms
from hessianlens.network.linear_maps import LinearMaps, Plan, SiteCurvature
from hessianlens.network.rehearsal import forward_sizes, sequences_of
from hessianlens.network.sites import AttentionSite, find_site, frozen_copy
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, TokenSum
from hessianlens.problems import Block, Problem

CLOSED_FORM = {"q": "Q", "k": "K", "v": "O", "o": "U"}
"""Names of q, k, v and o in `FactoredValueAttention`, whose W_O W_U is our W_V W_O."""


@dataclass(frozen=True, eq=False)
class ExactAttention:
    """The closed form of a problem's last attention layer.

    Attributes:
        problem: The problem.
        sites: The layer at each batch.
        model: The model that they belong to, a copy.
        maps: The linear maps of the network.
    """

    problem: Problem
    sites: tuple[AttentionSite, ...]
    model: nn.Module
    maps: LinearMaps

    @property
    def prefix(self) -> str:
        """Name of the layer's blocks."""
        return self.sites[0].prefix

    @property
    def single_head(self) -> bool:
        """Whether the layer has one head."""
        return len(self.sites[0].layer.heads) == 1

    def covers(self, blocks: Sequence[Block]) -> bool:
        """Whether every block is a weight or bias of this layer that the closed form knows."""
        return all(self._role(block.name) is not None for block in blocks)

    def _role(self, name: str) -> tuple[str, bool] | None:
        """Projection and whether it is a bias, for a block of this layer."""
        head, _, tail = name.removeprefix(self.prefix + ".").partition(".")
        if not name.startswith(self.prefix + ".") or head not in CLOSED_FORM or tail not in ("", "bias"):
            return None
        bias = tail == "bias"
        return None if bias and head not in self.sites[0].biased else (head, bias)

    @cached_property
    def derivatives(self) -> tuple[PositionDerivatives, ...]:
        """Gradient and curvature of the network behind the layer, at each batch."""
        if not _through_outputs(self.sites[0].network_output.shape[-1], self.sites[0].output.shape[-1]):
            at_layer = self._at_layer()
            if at_layer is not None:
                return at_layer
        found = []
        for site, batch in zip(self.sites, self.problem.data, strict=True):

            def loss(outputs: Tensor, batch: object = batch) -> Tensor:
                return self.problem.loss(outputs, batch)

            with differentiable_twice(self.model):
                found.append(position_derivatives(site.output, site.network_output, site.behind_at, loss))
        return tuple(found)

    def _at_layer(self) -> tuple[PositionDerivatives, ...] | None:
        """The same at what the output projection puts out, whatever the number of outputs behind it."""
        maps, block = self.maps, self.problem.blocks.get(f"{self.prefix}.o")
        plan = None if block is None else maps.plan(block, block, math.inf)
        if not isinstance(plan, Plan) or max(rows.members for rows, _ in plan.groups) > 1:
            return None
        return tuple(
            position_curvature(
                maps.slope(plan, number).reshape(site.output.shape),
                *(part.reshape(*site.output.shape, -1) for part in _parts(maps.curvature(plan, number))),
            )
            for number, site in enumerate(self.sites)
        )

    @cached_property
    def _hessians(self) -> tuple[InNetworkHessian, ...]:
        pairs = zip(self.sites, self.derivatives, strict=True)
        return tuple(in_network_hessian(site.layer, site.tokens, found) for site, found in pairs)

    def operator(self, part: str, row: Block, column: Block) -> StructuredOperator:
        """The exact matrix between two blocks; `part` is "full", "ggn" or "functional"."""
        grids = [self._grid(hessian.part(part), row, column) for hessian in self._hessians]
        total = grids[0]
        for grid in grids[1:]:
            both = total + grid
            assert isinstance(both, BlockGrid)
            total = both
        return ArrangedGrid(total, row.shape, column.shape, self._cut(row), self._cut(column))

    def norms(self, block: Block, parts: Sequence[str]) -> dict[str, float]:
        """Exact norms of parts of a diagonal block; where the functional part is zero, the other two are the same."""
        shared = self._shared_norms(block)
        if shared is not None:
            return {part: shared[part] for part in parts}
        found: dict[str, float] = {}
        for part in sorted(parts, key=("functional", "ggn", "full").index):
            same = part == "full" and "ggn" in found and found.get("functional") == 0
            found[part] = found["ggn"] if same else float(self.operator(part, block, block).frobenius_norm())
        return found

    def _shared_norms(self, block: Block) -> dict[str, float] | None:
        role = self._role(block.name)
        assert role is not None
        if len(self.sites) > 1:
            return None
        (site,), (derivatives,) = self.sites, self.derivatives
        return part_norms(site.layer, site.tokens, derivatives, CLOSED_FORM[role[0]], self.rows(*role))

    def _grid(self, grid: BlockGrid, row: Block, column: Block) -> BlockGrid:
        """The closed form's blocks of all heads, restricted to weights or biases.

        The block of a key or value head that several heads share is the sum over those heads.
        """
        shapes: dict[str, dict[Hashable, tuple[int, int]]] = {}
        slices: dict[str, slice] = {}
        sharing: dict[Hashable, list[tuple[str, int]]] = {}
        for block in (row, column):
            role = self._role(block.name)
            assert role is not None
            pieces = self._cut(block)(torch.zeros(block.shape))
            name = CLOSED_FORM[role[0]]
            names = [(name, h) for h in range(len(pieces))]
            sharing |= {(name, k): [(name, h) for h in self.sites[0].storage.sharing(role[0], k)] for _, k in names}
            shapes[block.name] = {n: (p.shape[0], p.shape[1]) for n, p in zip(names, pieces, strict=True)}
            slices[block.name] = self.rows(*role)

        def build(r: Hashable, c: Hashable) -> TokenSum:
            found = _sum([grid.block(x, y) for x in sharing[r] for y in sharing[c]])
            return found.restricted((slices[row.name], slice(None)), (slices[column.name], slice(None)))

        return BlockGrid(
            shapes[row.name], shapes[column.name], build, grid.dtype, grid.device, symmetric=row.name == column.name
        )

    def rows(self, name: str, bias: bool) -> slice:
        """Rows of an extended weight that are the weight, or the bias."""
        if name == "o" or not self.sites[0].biased:
            return slice(None)
        return slice(-1, None) if bias else slice(0, -1)

    def _cut(self, block: Block) -> Callable[[Tensor], list[Tensor]]:
        role = self._role(block.name)
        assert role is not None
        name, bias = role
        storage = self.sites[0].storage
        return partial(storage.bias_by_head if bias else storage.by_head, name)


def _parts(found: SiteCurvature) -> tuple[Tensor, Tensor]:
    return found.ggn, found.functional


def _sum(blocks: Sequence[StructuredOperator]) -> TokenSum:
    total = blocks[0]
    for block in blocks[1:]:
        both = total + block
        assert isinstance(both, TokenSum)
        total = both
    assert isinstance(total, TokenSum)
    return total


def exact_attention(problem: Problem, maps: LinearMaps | None = None) -> ExactAttention | None:
    """The closed form of the last attention layer; None where the model has none that it fits.

    Args:
        problem: From `hessianlens.problem`.
        maps: The linear maps of its network, if they are known already.
    """
    model = frozen_copy(problem)
    if model is None:
        return None
    sites = []
    with differentiable_twice(model):
        for batch in problem.data:
            site = find_site(problem, model, batch)
            if site is None:
                return None
            sites.append(site)
    return ExactAttention(problem, tuple(sites), model, LinearMaps(problem) if maps is None else maps)


@dataclass(frozen=True)
class Cost:
    """What the closed form takes.

    Attributes:
        products: Products, each over all of the data.
        held_bytes: Bytes at the peak.
    """

    products: int
    held_bytes: int


def closed_form_cost(problem: Problem, blocks: Sequence[Block]) -> Cost:
    """What the closed form of the last attention layer would take, from sizes alone.

    For N tokens with v outputs and width d. With few outputs: twice the Hessian of the loss at these, ``N v^2``; then
    that, the Jacobians ``N v d`` in three copies, the curvature ``N d^2`` in two. With many: that curvature alone. And
    for every head its small matrices.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Blocks of the attention layer.
    """
    *positions, outputs = forward_sizes(problem).outputs
    length = positions[-1] if positions else 1
    tokens = length * sum(map(sequences_of, problem.data))
    width = max(max(block.shape) for block in blocks)
    small = 3 * width**2 + 2 * length**2
    if _through_outputs(outputs, width):
        first = 2 * tokens * outputs**2 + tokens * outputs * width
        held = max(first, tokens * (outputs**2 + 3 * outputs * width + small))
        return Cost(2 * outputs + width, held * problem.dtype.itemsize)
    return Cost(width, tokens * (width**2 + small) * problem.dtype.itemsize)


def _through_outputs(outputs: int, width: int) -> bool:
    """Whether the curvature behind the layer is found by way of the outputs, in few factors, or at the layer itself."""
    return 2 * outputs < width
