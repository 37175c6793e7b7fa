"""Blocks between weights of the last attention layer, by its closed form, and those of them that vanish.

What lies behind the layer acts on every position alone, so it enters through a gradient and a small curvature matrix
per token. These are computed once for all blocks of the layer, which share their price.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from hessianlens.curvature import tape_can_pay_off
from hessianlens.errors import Refusal
from hessianlens.memory import SAFE_SHARE, available_bytes
from hessianlens.network.base import thresholds
from hessianlens.network.base.question import PROBE_VECTORS, Cost, Limits, Norms, Question, probe_vectors
from hessianlens.network.routes.last_attention import ExactAttention, closed_form_cost, exact_attention
from hessianlens.network.routes.linear_map import LinearMapPlan, LinearMaps
from hessianlens.network.routes.linear_map.plan import too_many_hvps
from hessianlens.operators import ArrangedGrid, BlockGrid, StructuredOperator, TokenSum
from hessianlens.problems import Block, Problem
from hessianlens.sizes import readable

NOT_LAST_ATTENTION = Refusal("")
"""The question is about other blocks."""
_OF_ATTENTION = re.compile(r"att|cross\.", re.IGNORECASE)
"""What names of blocks of an attention layer contain, under our names or the model's own."""
_KEY_BIAS = re.compile(r"\.(attn|cross)\.k\b.*bias")


class LastAttentionRoute:
    """The closed form of a problem's last attention layer.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        maps: The linear maps of its network.
    """

    name = "the closed form of attention"

    def __init__(self, problem: Problem, maps: LinearMaps) -> None:
        self.problem, self.maps = problem, maps

    @cached_property
    def located(self) -> ExactAttention | Refusal:
        """The closed form, whatever it costs; or why there is none."""
        found = exact_attention(self.problem, self.maps)
        return Refusal(f"the closed form of attention does not fit: {found}") if isinstance(found, Refusal) else found

    @cached_property
    def located_factored(self) -> ExactAttention | Refusal:
        """The closed form with the maps in front of those of queries, keys and values."""
        if isinstance(self.located, Refusal) or self.located.own is not None:
            return self.located
        return exact_attention(self.problem, self.maps, factored=True)

    def _covering(self, blocks: Sequence[Block]) -> ExactAttention | Refusal:
        """The closed form that knows some blocks: the one with all factors of maps where these are among them."""
        found = self.located
        if isinstance(found, Refusal) or found.covers(blocks) or not _may_be_factored(found, blocks):
            return found
        factored = self.located_factored
        return factored if isinstance(factored, ExactAttention) and factored.covers(blocks) else found

    def closed_form(self, blocks: Sequence[Block], limits: Limits) -> ExactAttention | Refusal:
        """The closed form, if weights of an attention layer that may be the last are asked for and it is affordable.

        Args:
            blocks: What is asked for.
            limits: The most that it may cost.
        """
        asked = [block for block in blocks if _OF_ATTENTION.search(block.name) and self.maps.stands_last(block)]
        if not asked:
            return NOT_LAST_ATTENTION
        cost, free = closed_form_cost(self.problem, asked), available_bytes(self.problem.device)
        if cost.held_bytes > SAFE_SHARE * free:
            return Refusal(f"its closed form needs {readable(cost.held_bytes)}, and {readable(free)} are free")
        if cost.products > limits.shared_hvps and not self._known:
            return too_many_hvps(cost.products, limits.shared_hvps)
        if not any(map(self.maps.may_act_alone, asked)):
            return NOT_LAST_ATTENTION
        return self._covering(asked if len(asked) == len(blocks) else blocks)

    @property
    def _known(self) -> bool:
        """Whether what lies behind the layer is computed already."""
        located = [vars(self).get(name) for name in ("located", "located_factored")]
        return any(isinstance(each, ExactAttention) and each.known for each in located)

    def cost(self, question: Question) -> Cost | Refusal:
        """Nothing beyond what lies behind the layer."""
        found = self.closed_form((question.row, question.column), question.limits)
        if isinstance(found, Refusal):
            return found
        if not found.covers((question.row, question.column)) or self._cheaper_as_linear_map(found, question):
            return NOT_LAST_ATTENTION
        upfront = 0 if found.known else closed_form_cost(self.problem, [question.row, question.column]).products
        return Cost(
            reason=f"all layers after {found.prefix}, the last attention layer, act on every position by itself",
            upfront_hvps=upfront,
            shared=self.name,
            fast_matvecs=found.known or not any(tape_can_pay_off(self.problem, batch) for batch in self.problem.data),
        )

    def _cheaper_as_linear_map(self, found: ExactAttention, question: Question) -> bool:
        """Whether only norms of an output projection are asked for: with several heads it makes many small blocks."""
        if not (question.norms_only and question.is_diagonal) or found.single_head or not found.is_output(question.row):
            return False
        limits = question.limits
        plan = self.maps.plan(question.row, question.column, min(limits.hvps, thresholds.EXACT_MAX_HVPS))
        most_bytes = min(limits.held_bytes, thresholds.EXACT_MAX_BYTES)
        return isinstance(plan, LinearMapPlan) and plan.streams and plan.held_bytes <= most_bytes

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix, as sums over tokens."""
        return self._found(question).operator(part, question.row, question.column)

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """Norms of parts; of a block with itself from inner products that these share."""
        operators = {part: self.operator(question, part) for part in parts}
        if question.is_diagonal:
            values = self._found(question).norms(question.row, parts)
        else:
            values = {part: float(operator.frobenius_norm()) for part, operator in operators.items()}
        probes = probe_vectors(question.column, self.problem)
        return Norms(values, {part: operator._matmat([probes])[0] for part, operator in operators.items()})

    def _found(self, question: Question) -> ExactAttention:
        found = self._covering((question.row, question.column))
        assert isinstance(found, ExactAttention)
        return found


def _may_be_factored(found: ExactAttention, blocks: Sequence[Block]) -> bool:
    """Whether blocks that are not of the layer may be those of a map in front of it, as their names begin alike."""
    prefixes = {own.use.parameter.rpartition(".")[0].rpartition(".")[0] for own in found.sites[0].projections.values()}
    others = [block for block in blocks if not found.covers([block])]
    return all(block.parameter.rpartition(".")[0].rpartition(".")[0] in prefixes for block in others)


class ZeroRoute:
    """Blocks of weights on which nothing depends: zero with everything, without rounding.

    The same vector added to all keys of a row adds the same number to its scores. What changes the outputs at no
    weights has no second derivative with any other weight either.

    Args:
        problem: From `hessianlens.problem`, with all of its data.
        attention: The closed form of the last attention layer, which knows its activation.
    """

    name = "a block that vanishes"

    def __init__(self, problem: Problem, attention: LastAttentionRoute) -> None:
        self.problem, self._attention = problem, attention

    def cost(self, question: Question) -> Cost | Refusal:
        """Nothing."""
        blocks, limits = (question.row, question.column), question.limits
        if any(_KEY_BIAS.search(block.name) for block in blocks):  # it takes no HVPs to see
            limits = replace(limits, shared_hvps=max(limits.shared_hvps, thresholds.EXACT_MAX_HVPS))
        found = self._attention.closed_form(blocks, limits)
        if isinstance(found, Refusal) or not (found.is_flat(question.row) or found.is_flat(question.column)):
            return NOT_LAST_ATTENTION
        reason = f"the same vector added to all keys of {found.prefix} changes none of its weights"
        return Cost(reason, fast_matvecs=True)

    def operator(self, question: Question, part: str) -> StructuredOperator:
        """The matrix, without terms."""
        row, column = question.row, question.column
        shapes, dtype, device = [(1, block.numel) for block in (row, column)], self.problem.dtype, self.problem.device

        def build(_: Hashable, __: Hashable) -> TokenSum:
            return TokenSum([], shapes[0], shapes[1], dtype, device)

        def cut(tensor: Tensor) -> list[Tensor]:
            return [tensor.reshape(1, -1)]

        same = row.name == column.name
        grid = BlockGrid({row.name: shapes[0]}, {column.name: shapes[1]}, build, dtype, device, same)
        return ArrangedGrid(grid, row.shape, column.shape, cut, cut)

    def norms(self, question: Question, parts: Sequence[str]) -> Norms:
        """All zero."""
        shape = (*question.row.shape, PROBE_VECTORS)
        zero = torch.zeros(shape, dtype=self.problem.dtype, device=self.problem.device)
        return Norms(dict.fromkeys(parts, 0.0), dict.fromkeys(parts, zero))
