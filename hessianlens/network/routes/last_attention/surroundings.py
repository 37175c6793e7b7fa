"""One attention of a network, and the linear maps around it, located in one forward pass."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.activations.softmax import SoftCapped
from hessianlens.attention.layer import MultiHeadAttention
from hessianlens.attention.side_by_side import SideBySideAttention, TokenwiseHead
from hessianlens.derivatives.graph import steps_of
from hessianlens.errors import Refusal
from hessianlens.network.base.attention_calls import AttentionCall
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.operands import Operand, ScoreRule, is_curved, operand_of, source_of
from hessianlens.network.base.recognition import Grouping, groupings
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.last_attention.output_map import CHANGED, OutputProjection, depends, projection_behind
from hessianlens.network.routes.last_attention.site import AttentionSite, HeadProjection, with_ones
from hessianlens.network.routes.last_attention.smooth import SmoothSource
from hessianlens.problems import Problem

ROLES = {"q": "its queries", "k": "its keys", "v": "its values"}
"""What the operands of an attention are called in reasons."""
_MOST_GATES = 3
"""Linear maps that may change what the heads put out."""


@dataclass(frozen=True, eq=False)
class Gate:
    """A linear map whose outputs change what the heads put out.

    Attributes:
        projection: Where it lies in its parameter.
        weight: In the order ``x @ W``.
        rows: Its bias, a row; None where it has none.
        content: Tokens of its own; None for those of the queries.
    """

    projection: HeadProjection
    weight: Tensor
    rows: list[Tensor] | None
    content: Tensor | None = None

    def head(self, biased: bool, width: int) -> TokenwiseHead:
        """The head that stands for it, beside heads that tokens of a width enter."""
        content = self.content if self.content is None or not biased else with_ones(self.content)
        return TokenwiseHead(self.extended(biased), content, width)

    def extended(self, biased: bool) -> Tensor:
        """The weight, with a last row for the bias where the layer has some."""
        if not biased:
            return self.weight
        row = self.weight.new_zeros(1, self.weight.shape[1]) if self.rows is None else self.rows[0]
        return torch.cat([self.weight, row])


@dataclass(frozen=True, eq=False)
class AttentionSurroundings:
    """One attention and the maps around it.

    Attributes:
        problem: The problem.
        hooks: What was seen of its parameters.
        call: The attention.
        sequences: Sequences that it sees.
        others: Queries, keys and values of the attentions before it.
        linked: Sites of maps that stay on the graph of what is in front of them.
    """

    problem: Problem
    hooks: Hooks
    call: AttentionCall
    sequences: int
    others: Sequence[tuple[Tensor, ...]]
    linked: Container[int] = ()

    def values(self, use: Use) -> Tensor:
        """The parameter of a use."""
        return self.problem.params[use.parameter].detach()

    def rows(self, shift: Use, projection: HeadProjection) -> list[Tensor]:
        """The bias of a projection by piece, a row each."""
        values = shift.matrix(self.values(shift))
        return [values[own][None] for own in projection.features.to(values.device)]

    def weight(self, site: int) -> Use | None:
        """The linear map of a site; None where there is another operation."""
        found = [use for use in self.hooks.record.uses if use.site == site and use.kind in (Kind.IN_OUT, Kind.OUT_IN)]
        return found[0] if len(found) == 1 else None

    def shift(self, site: int) -> Use | None:
        """The bias that is added at a site."""
        shifts = [use for use in self.hooks.record.uses if use.kind is Kind.SHIFT]
        own = [use for use in shifts if site in (use.site, self.hooks.shifts.get(use.site))]
        return own[0] if own else None

    def tokens(self, use: Use, grouping: Grouping) -> Tensor:
        """What enters a map, ``[sequence, position, feature]``."""
        assert use.inputs is not None
        return grouping.arrange(use.inputs.detach().flatten(0, -2))

    def operand(self, taken: Tensor) -> Operand | Refusal:
        """Queries, keys or values that are linear in what one map puts out; a refusal where they are more."""
        site = source_of(taken, self.hooks.leaves)
        if isinstance(site, Refusal):
            return site
        if self.weight(site) is None:
            return self.other_source(taken, site)
        if is_curved(taken, [self.hooks.leaves[site]]):
            return Refusal("are not a linear function of the output of their map")
        return operand_of(taken, site, self.hooks.leaves[site])

    def other_source(self, taken: Tensor, site: int) -> Refusal:
        """What an operand comes from that does not come from a linear map: another operation, or a gain."""
        for step in steps_of(taken):
            parameter = self.hooks.unknown_steps.get(step)
            if parameter is not None:
                through = self.hooks.record.unknown[parameter]
                return Refusal(f"come through {through} with {parameter}, which is not known to be a linear map")
        gains = [use.parameter for use in self.hooks.record.uses if use.site == site and use.kind is Kind.GAIN]
        entrywise = f"are multiplied with {gains[0]} entry by entry, as by a norm," if gains else "are changed"
        return Refusal(f"{entrywise} after the last linear map")

    def used_elsewhere(self, sources: Sequence[SmoothSource | Operand], out: Use) -> set[int]:
        """Sites of maps whose outputs this attention shares with others, as where layers share keys and values."""
        taken = {source.site for source in sources}
        weights = [use for use in self.hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN) and use is not out]
        own = [use for use in weights if use.site in taken and use.site in self.linked]
        ends = [use.inputs for use in weights if use.inputs is not None and use not in own]
        ends += [self.call.scores, *(tensor for call in self.others for tensor in call)]
        found: set[int] = set()
        for end in ends:
            if not end.requires_grad or end.grad_fn is None:
                continue
            leaves = [self.hooks.leaves[source.site] for source in sources]
            slopes = torch.autograd.grad(end, leaves, torch.ones_like(end), retain_graph=True, allow_unused=True)
            for source, slope in zip(sources, slopes, strict=True):
                if slope is not None and bool(slope[..., source.features.flatten().to(slope.device)].any()):
                    found.add(source.site)
        return found

    def pieces(self, projection: HeadProjection) -> list[Tensor]:
        """The weight of a projection by piece."""
        return projection.matrices(self.values(projection.use))

    def output_pieces(self, out: OutputProjection, output: Tensor) -> list[Tensor]:
        """The output projection by head, or what stands for it in front of a gate: the heads as they are."""
        heads, width = output.shape[1], output.shape[3]
        if out.between is not None:
            return [torch.eye(width, dtype=output.dtype, device=output.device)] * heads
        return self.pieces(self.output_heads(out, output))

    def output_heads(self, out: OutputProjection, output: Tensor) -> HeadProjection:
        """Where the output projection takes every head."""
        taken = torch.arange(output.shape[1] * output.shape[3], device="cpu").reshape(output.shape[1], -1)
        return HeadProjection(out.use, None, taken, tuple(range(output.shape[1])), of_inputs=True)

    def gates(
        self, out: OutputProjection, projections: Mapping[str, HeadProjection], tokens: Tensor, output: Tensor
    ) -> dict[str, Gate] | Refusal:
        """The linear maps whose outputs change what the heads put out, by name; a refusal where they do not fit."""
        found: dict[str, Gate] = {}
        sources = () if out.between is None else out.between.sources
        if len(sources) > _MOST_GATES:
            return Refusal(
                f"the output of its heads is changed by {len(sources)} linear maps before its output projection"
            )
        for k, source in enumerate(sources):
            use = self.weight(source.site)
            if use is None or use.inputs is None:
                return CHANGED
            entering = self.tokens(use, source.grouping)
            if entering.shape[:2] != tokens.shape[:2]:
                return Refusal("the output of its heads is changed by a linear map of other positions")
            own = None if entering.shape == tokens.shape and torch.equal(entering, tokens) else entering
            shift = self.shift(source.site)
            projection = HeadProjection(use, shift, source.features.cpu(), (0,), first=output.shape[1] + k)
            rows = None if shift is None else self.rows(shift, projection)
            found[f"g{k + 1 if k else ''}"] = Gate(projection, self.pieces(projection)[0], rows, own)
        if sources and self.used_elsewhere(sources, out.use):
            return Refusal("the output of its heads is changed by a linear map that is used elsewhere too")
        return found

    def site(
        self,
        layer: MultiHeadAttention,
        X: Tensor,
        projections: dict[str, HeadProjection],
        out: OutputProjection,
        gates: Mapping[str, Gate],
        output: Tensor,
    ) -> AttentionSite:
        """The layer with its output projection; or, in front of what stands before that, its heads beside the gates."""
        if out.between is None:
            return AttentionSite(layer, X, {**projections, "o": self.output_heads(out, output)}, out.grouping)
        biased = any(own.shift is not None for own in (*projections.values(), *(g.projection for g in gates.values())))
        logits = [gate.head(biased, layer.heads[0].d_model) for gate in gates.values()]
        return AttentionSite(
            SideBySideAttention([*layer.heads, *logits]),
            X,
            projections | {name: gate.projection for name, gate in gates.items()},
            out.grouping,
            projected=out.use,
            before=out.between.curvature_before,
        )

    def output_map(self, output: Tensor) -> OutputProjection | Refusal:
        """The map that takes the heads side by side, or what is made of them position by position."""
        side_by_side = output.detach().transpose(1, 2).flatten(2)
        for use in self.hooks.record.uses:
            if use.kind not in (Kind.IN_OUT, Kind.OUT_IN) or use.inputs is None:
                continue
            flat = use.inputs.detach().flatten(0, -2)
            for grouping in groupings(tuple(use.inputs.shape), self.sequences):
                fits = flat.shape[-1] == side_by_side.shape[-1] and grouping.groups == self.sequences
                if fits and torch.equal(grouping.arrange(flat), side_by_side):
                    return OutputProjection(use, grouping)
        uses, leaves = self.hooks.record.uses, self.hooks.leaves
        found = projection_behind(self.call.outputs, output, uses, leaves, self.problem.params)
        if isinstance(found, Refusal) or found.between is None or not depends(found.between.rows, [self.call.raw]):
            return found
        return Refusal("the output of its heads is changed by its own scores")


@dataclass(frozen=True, eq=False)
class AttentionByHead:
    """One attention whose heads are to be made of the maps around it.

    Attributes:
        around: The attention and the maps around it.
        operands: Queries, keys and values of all heads, ``[sequence, head, position, e]``.
        rule: From products to scores.
        output: What the heads put out.
    """

    around: AttentionSurroundings
    operands: Mapping[str, Tensor]
    rule: ScoreRule
    output: Tensor

    def weights(self, projections: Mapping[str, HeadProjection], out: OutputProjection) -> dict[str, list[Tensor]]:
        """Matrices of all maps by piece, that of the output by head."""
        found = {name: self.around.pieces(own) for name, own in projections.items()}
        return {**found, "o": self.around.output_pieces(out, self.output)}

    def biases(
        self, projections: Mapping[str, HeadProjection], gates: Mapping[str, Gate]
    ) -> dict[str, list[Tensor] | None]:
        """Rows of all maps by piece, of gates too; None where a map has none."""
        found = {n: None if own.shift is None else self.around.rows(own.shift, own) for n, own in projections.items()}
        return {**found, **{name: gate.rows for name, gate in gates.items()}}

    def heads(self, projections: Mapping[str, HeadProjection]) -> dict[str, Sequence[int]]:
        """The piece of every head."""
        return {"o": range(self.output.shape[1]), **{name: own.heads for name, own in projections.items()}}

    def options(self, width: int, factor: float = 1.0) -> list[dict[str, Any]]:
        """How every head makes weights of products of a width; a sink's logit is part of the bias.

        Args:
            width: Length of a query.
            factor: What the products are multiplied with before the rule.
        """
        return [self._options(head, width, factor) for head in range(self.output.shape[1])]

    def _options(self, head: int, width: int, factor: float) -> dict[str, Any]:
        rule = self.rule
        found: dict[str, Any] = {"temperature": 1 / (rule.scale * factor * math.sqrt(width))}
        if self.around.call.sink:
            found["sink"] = 0.0
        if rule.cap is not None:
            found["activation"] = SoftCapped(rule.cap)
        if rule.bias is not None:
            found["bias"] = rule.bias[:, head]
        if not bool(rule.visible[:, head].all()):
            found["mask"] = rule.visible[:, head]
        return found
