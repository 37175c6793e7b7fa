"""Exact blocks of the last attention layer of a problem, under the names and in the order of its own parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.attention.activations import as_activation
from hessianlens.attention.rotary import RotaryAttention
from hessianlens.errors import Refusal
from hessianlens.models.adapters.twice_differentiable import differentiable_twice
from hessianlens.models.block import MLP_ACTIVATIONS, TransformerBlock
from hessianlens.models.transformer import Transformer
from hessianlens.network.base.dry_run import forward_sizes, sequences_of
from hessianlens.network.routes.last_attention.locate import find_site
from hessianlens.network.routes.last_attention.many_heads_norms import HeadNorms
from hessianlens.network.routes.last_attention.one_head_norms import part_norms
from hessianlens.network.routes.last_attention.positionwise import (
    InNetworkHessian,
    PositionDerivatives,
    position_curvature,
    position_derivatives,
)
from hessianlens.network.routes.last_attention.products import PiecePlace, piece_grid
from hessianlens.network.routes.last_attention.site import CLOSED_FORM, AttentionSite, frozen_copy
from hessianlens.network.routes.last_attention.smooth_attention import SmoothAttention
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator
from hessianlens.problems import Block, Problem

_COLUMNS = 64
"""Columns of a block that are formed together."""
_MIXES = Refusal("the layers after it mix positions")


@dataclass(frozen=True, eq=False)
class ExactAttention:
    """The closed form of a problem's last attention layer.

    Attributes:
        problem: The problem.
        sites: The layer at each batch.
        own: A copy of its model, if that is one of the library's own.
        maps: The linear maps of the network.
        prefix: What the names of the layer's blocks begin with.
    """

    problem: Problem
    sites: tuple[AttentionSite, ...]
    own: Transformer | None
    maps: LinearMaps
    prefix: str

    @property
    def known(self) -> bool:
        """Whether what lies behind the layer has been looked at."""
        return "derivatives" in vars(self)

    @property
    def single_head(self) -> bool:
        """Whether the layer has one head."""
        return len(self.sites[0].layer.heads) == 1

    def covers(self, blocks: Sequence[Block]) -> bool:
        """Whether every block is a weight or bias of this layer, or whole heads of one."""
        return all(self._roles(block) for block in blocks)

    def _roles(self, block: Block) -> tuple[str, ...]:
        """The projections that a block of this layer makes up: one, or several that come from one map."""
        params, projections = self.problem.params, self.sites[0].projections
        within = {name: own.pieces_within(block, params) for name, own in projections.items()}
        found = {name: rest for name, (pieces, rest) in within.items() if pieces}
        if not found or frozenset.intersection(*found.values()):
            return ()
        pieces = {tuple(projections[name].features[n].tolist()) for name in found for n in within[name][0]}
        each = [feature for piece in pieces for feature in piece]
        return tuple(found) if len(set(each)) == len(each) else ()

    def _role(self, block: Block) -> str | None:
        """The projection, q, k, v or o, that a block of this layer belongs to; None where these are several."""
        roles = self._roles(block)
        return roles[0] if len(roles) == 1 else None

    def is_flat(self, block: Block) -> bool:
        """Whether nothing depends on a block: the same vector is added to all keys, and no row of weights sees it."""
        if self._role(block) != "k" or not self._is_bias("k", block):
            return False
        heads = [head for site in self.sites for head in site.layer.heads]
        turned = any(
            isinstance(head, RotaryAttention) or (isinstance(head, SmoothAttention) and not head.keys_shift_alike)
            for head in heads
        )
        sunk = any(head.sink is not None for head in heads)  # a sink's key has no bias
        return not (turned or sunk) and all(as_activation(head.activation).shift_invariant for head in heads)

    def is_output(self, block: Block) -> bool:
        """Whether a block belongs to the output projection."""
        return self._role(block) == "o"

    def _is_bias(self, name: str, block: Block) -> bool:
        return block.parameter != self.sites[0].projections[name].use.parameter

    @cached_property
    def derivatives(self) -> tuple[PositionDerivatives, ...]:
        """Gradient and curvature of the network behind the layer, at each batch."""
        if not self._through_outputs:
            return self._at_layer()
        assert self.own is not None
        found = []
        for site, batch in zip(self.sites, self.problem.data, strict=True):
            assert site.narrowed is not None

            def loss(outputs: Tensor, batch: object = batch) -> Tensor:
                return self.problem.loss(outputs, batch)

            with differentiable_twice(self.own):
                found.append(position_derivatives(site.output, site.network_output, site.narrowed, loss))
        return tuple(found)

    @property
    def _through_outputs(self) -> bool:
        """Whether the curvature behind the layer is found by way of the outputs."""
        site = self.sites[0]
        if site.downstream is None:
            return False
        few = _few_outputs(site.network_output.shape[-1], site.output.shape[-1])
        return few or isinstance(output_plan(self.maps, site), Refusal)

    def _at_layer(self) -> tuple[PositionDerivatives, ...]:
        """The same at what the output projection puts out, whatever the number of outputs behind it."""
        plan = output_plan(self.maps, self.sites[0])
        assert isinstance(plan, LinearMapPlan)
        found = []
        for number, site in enumerate(self.sites):
            curvature = self.maps.curvature(plan, number)
            slope, ggn, functional = (
                site.grouping.arrange(tensor.flatten(1, 2) if tensor.ndim == 5 else tensor)
                for tensor in (self.maps.slope(plan, number), curvature.ggn, curvature.functional)
            )
            derivatives = slope, ggn.squeeze(-2), functional.squeeze(-2)
            found.append(position_curvature(*(derivatives if site.before is None else site.before(*derivatives))))
        return tuple(found)

    @cached_property
    def hessians(self) -> tuple[InNetworkHessian, ...]:
        """The layer with what lies behind it, at each batch."""
        pairs = zip(self.sites, self.derivatives, strict=True)
        return tuple(InNetworkHessian(site.layer, site.tokens, found) for site, found in pairs)

    def operator(self, part: str, row: Block, column: Block) -> StructuredOperator:
        """The exact matrix between two blocks; `part` is "full", "ggn" or "functional"."""
        rows, columns = self._parts(row), self._parts(column)
        grids = [piece_grid(hessian.part(part), rows, columns) for hessian in self.hessians]
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
            found[part] = found["ggn"] if same else self._norm(part, block)
        return found

    def _norm(self, part: str, block: Block) -> float:
        """By columns where a piece has so many heads that inner products of all pairs of them are more."""
        operator = self.operator(part, block, block)
        smooth = any(isinstance(head, SmoothAttention) for head in self.sites[0].layer.heads)
        shared = max(len(place.heads) for place in self._parts(block).values())
        if not smooth or shared**4 <= block.numel:
            return float(operator.frobenius_norm())
        eye = torch.eye(block.numel, dtype=self.problem.dtype, device=self.problem.device)
        squares = [(operator @ columns.T).square().sum() for columns in eye.split(_COLUMNS)]
        return float(torch.stack(squares).sum().sqrt())

    def _shared_norms(self, block: Block) -> dict[str, float] | None:
        if len(self.sites) > 1 or self.sites[0].projected is not None:
            return None
        name = self._role(block)
        if name is None or any(
            isinstance(h, SmoothAttention) and h.values is not None for h in self.sites[0].layer.heads
        ):
            return None
        (site,), (derivatives,) = self.sites, self.derivatives
        projection = site.projections[name]
        pieces = projection.pieces(block, self.problem.params)
        assert pieces is not None
        rows = self.rows(name, self._is_bias(name, block))
        if self.single_head:
            return part_norms(site.layer, site.tokens, derivatives, CLOSED_FORM[name], rows)
        heads = [tuple(projection.sharing(piece)) for piece in pieces]
        return self._head_norms.norms(CLOSED_FORM[name], heads, rows)

    @cached_property
    def _head_norms(self) -> HeadNorms:
        (site,), (derivatives,) = self.sites, self.derivatives
        return HeadNorms(site.layer, site.tokens, derivatives)

    def _parts(self, block: Block) -> dict[Hashable, PiecePlace]:
        """Where the heads of a block lie in the layer, by block and piece."""
        found: dict[Hashable, PiecePlace] = {}
        keys: dict[tuple[int, ...], Hashable] = {}
        for role in self._roles(block):
            projection, name = self.sites[0].projections[role], CLOSED_FORM[role]
            pieces, _ = projection.pieces_within(block, self.problem.params)
            rows, weights = self.rows(role, self._is_bias(role, block)), self.sites[0].layer.parameters
            for piece in pieces:
                heads = tuple((name, h) for h in projection.sharing(piece))
                height, width = weights[heads[0]].shape
                key = keys.setdefault(tuple(projection.features[piece].tolist()), (block.name, role, piece))
                others = found[key].heads if key in found else ()  # a piece that is part of several
                found[key] = PiecePlace((*others, *heads), rows, (height, width))
        return found

    def rows(self, name: str, bias: bool) -> slice:
        """Rows of an extended weight that are the weight, or the bias."""
        if name == "o" or not self.sites[0].biased:
            return slice(None)
        return slice(-1, None) if bias else slice(0, -1)

    def _cut(self, block: Block) -> Callable[[Tensor], list[Tensor]]:
        params, projections = self.problem.params, self.sites[0].projections
        cuts, known = [], set[tuple[int, ...]]()
        for role in self._roles(block):
            own = projections[role]
            features = [tuple(own.features[piece].tolist()) for piece in own.pieces_within(block, params)[0]]
            cuts.append((own.cut(block, params), [each not in known for each in features]))
            known.update(features)
        return lambda tensor: [
            piece for cut, new in cuts for piece, taken in zip(cut(tensor), new, strict=True) if taken
        ]


def output_plan(maps: LinearMaps, site: AttentionSite) -> LinearMapPlan | Refusal:
    """How the curvature at what the output projection puts out is found, or a refusal."""
    parameter = site.output_use.parameter
    block = Block.of(f"all of {parameter}", parameter, maps.problem.params[parameter])
    plan = maps.plan(block, block, math.inf)
    if isinstance(plan, LinearMapPlan) and max(rows.members for rows, _ in plan.groups) > 1:
        return _MIXES
    return plan


def _folded(problem: Problem, site: AttentionSite) -> Refusal:
    """That positions are mixed; of which sequences, where a model makes several of an example."""
    each = len(site.tokens) // max(1, sequences_of(problem.data[0]))
    if each == 1:
        return _MIXES
    return Refusal(f"the layers after it couple the {each} sequences of an example, such as choices")


def exact_attention(
    problem: Problem, maps: LinearMaps | None = None, factored: bool = False
) -> ExactAttention | Refusal:
    """The closed form of the last attention layer; a refusal where there is none.

    Args:
        problem: From `hessianlens.problem`.
        maps: The linear maps of its network, if they are known already.
        factored: Whether maps in front of those of queries, keys and values belong to it, as those of latent attention.
    """
    own, sites = frozen_copy(problem), []
    with nullcontext() if own is None else differentiable_twice(own):
        for batch in problem.data:
            site = find_site(problem, batch, own, factored)
            if isinstance(site, Refusal):
                return site
            sites.append(site)
    known = LinearMaps(problem) if maps is None else maps
    if own is None and isinstance(plan := output_plan(known, sites[0]), Refusal):
        return (
            _folded(problem, sites[0])
            if plan == _MIXES
            else replace(plan, reason=f"its output projection has none: {plan}")
        )
    return ExactAttention(problem, tuple(sites), own, known, _prefix(problem, sites[0]))


def _prefix(problem: Problem, site: AttentionSite) -> str:
    """What the names of blocks of the layer begin with, as ``layer3.attn``."""
    parameter = site.output_use.parameter
    names = [name for name, block in problem.blocks.items() if block.parameter == parameter]
    return names[0].rpartition(".")[0] if names else "the last attention layer"


@dataclass(frozen=True)
class ClosedFormCost:
    """What the closed form takes.

    Attributes:
        products: HVPs, or as much work as so many, each over all of the data.
        held_bytes: Bytes at the peak.
    """

    products: int
    held_bytes: int


def closed_form_cost(problem: Problem, blocks: Sequence[Block]) -> ClosedFormCost:
    """What the closed form of the last attention layer would take, from sizes alone.

    For N tokens with v outputs and width d. With few outputs: twice the Hessian of the loss at these, ``N v^2``; then
    that, the Jacobians ``N v d`` in three copies, the curvature ``N d^2`` in two. With many: that curvature alone. And
    for every head its small matrices. A row of a Jacobian is about half an HVP, and a column of the curvature of what
    lies behind the layer, where that is curved, about a quarter.

    Args:
        problem: From `hessianlens.problem`.
        blocks: Blocks of the attention layer.
    """
    *positions, outputs = forward_sizes(problem).outputs
    length = positions[-1] if positions else 1
    tokens = length * sum(map(sequences_of, problem.data))
    width = max(max(block.shape, default=1) for block in blocks)
    small = 3 * width**2 + 2 * length**2
    if _few_outputs(outputs, width):
        first = 2 * tokens * outputs**2 + tokens * outputs * width
        held = max(first, tokens * (outputs**2 + 3 * outputs * width + small))
        own = problem.source if isinstance(problem.source, Transformer) else None
        through = width if own is None else outputs / 2 + (width / 4 if _curved_behind(own) else 0)
        return ClosedFormCost(math.ceil(through), held * problem.dtype.itemsize)
    return ClosedFormCost(width, tokens * (width**2 + small) * problem.dtype.itemsize)


def _curved_behind(model: Transformer) -> bool:
    """Whether the network behind the last attention layer has a second derivative: a norm, or a smooth activation."""
    *_, last = model.blocks
    assert isinstance(last, TransformerBlock)
    smooth = last.mlp is not None and last.mlp.activation not in (MLP_ACTIVATIONS["relu"], MLP_ACTIVATIONS["linear"])
    return smooth or last.norm is not None or model.norm_final is not None


def _few_outputs(outputs: int, width: int) -> bool:
    """Whether the curvature behind the layer is found by way of the outputs, in few factors, or at the layer itself."""
    return 2 * outputs < width
