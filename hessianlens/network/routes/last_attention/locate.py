"""The last attention layer of any model, located at its attention and at the linear maps around it.

One forward pass in which every linear map puts out a leaf shows what its queries, keys and values are made of, what is
done to its scores and where its outputs go. Heads are made of that; where something is not as the closed forms take
it, the answer is why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hessianlens.attention.activations.softmax import SoftCapped
from hessianlens.attention.layer import FactoredValueAttention, MultiHeadAttention
from hessianlens.attention.rotary import RotaryAttention
from hessianlens.attention.side_by_side import SideBySideAttention, TokenwiseHead
from hessianlens.derivatives.difference import random_like
from hessianlens.derivatives.graph import expect_twice_differentiable, refusals_of, steps_of
from hessianlens.errors import Refusal
from hessianlens.models.transformer import Transformer
from hessianlens.network.base.attention_calls import AttentionCall, AttentionCalls
from hessianlens.network.base.dry_run import sequences_of
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.recognition import close, couples_no_groups, groupings
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.last_attention.operands import (
    NO_SOURCE,
    Operand,
    RotatedFactor,
    ScoreRule,
    operand_of,
    pairs_of,
    plain,
    rotated_factor,
    score_rule,
    source_of,
)
from hessianlens.network.routes.last_attention.output_map import CHANGED, OutputProjection, depends, projection_behind
from hessianlens.network.routes.last_attention.site import AttentionSite, HeadProjection, heads_of, toy_site, with_ones
from hessianlens.network.routes.last_attention.smooth import (
    SmoothOperand,
    SmoothSource,
    is_curved,
    smooth_heads,
    smooth_operand,
)
from hessianlens.problems import Batch, Problem

_CALLED = {"q": "its queries", "k": "its keys", "v": "its values"}


def locate_attention(problem: Problem, batch: Batch) -> AttentionSite | Refusal:
    """The site at a batch; a refusal where there is none.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
    """
    found = _located(problem, batch, cut_gains=False)
    if isinstance(found, Refusal) and found.reason.endswith(NO_SOURCE.reason):
        return _located(problem, batch, cut_gains=True)  # which operation takes the place of the map
    return found


def _located(problem: Problem, batch: Batch, cut_gains: bool) -> AttentionSite | Refusal:
    hooked = Hooks(problem.params, cut=True, cut_gains=cut_gains)
    with problem.scope(), torch.enable_grad(), hooked as hooks, AttentionCalls(cut=True) as calls:
        problem.forward(problem.params, batch)
    if calls.last is None:
        return Refusal("no attention with softmax was seen")
    with torch.enable_grad():
        sequences = _sequences(calls.last, max(1, sequences_of(batch)))
        return _AttentionSurroundings(problem, hooks, calls.last, sequences, calls.earlier).site()


def _sequences(call: AttentionCall, examples: int) -> int:
    """Sequences that attention sees: several of an example where a model folds choices or windows into its batch."""
    first = call.q.shape[0]
    return first if call.q.ndim == 4 and first % examples == 0 else examples


@dataclass(frozen=True, eq=False)
class _AttentionSurroundings:
    """One attention and the maps around it."""

    problem: Problem
    hooks: Hooks
    call: AttentionCall
    sequences: int
    others: Sequence[tuple[Tensor, ...]]

    def site(self) -> AttentionSite | Refusal:
        by_head = {name: self._by_head(getattr(self.call, name)) for name in ("q", "k", "v", "raw", "output")}
        if any(tensor is None for tensor in by_head.values()):
            return Refusal("its heads and sequences cannot be separated")
        q, k, v, raw, output = (tensor for tensor in by_head.values() if tensor is not None)
        rule = score_rule(self.call.raw, self.call.scores, raw.shape)
        if isinstance(rule, Refusal):
            return rule
        taken = {n: t.expand(-1, raw.shape[1], -1, -1) for n, t in (("q", q), ("k", k), ("v", v))}
        found = self._rotated(taken, rule, output)
        return self._smooth(taken, rule, output) if isinstance(found, Refusal) else found

    def _rotated(self, taken: Mapping[str, Tensor], rule: ScoreRule, output: Tensor) -> AttentionSite | Refusal:
        """The site where queries and keys are rotated products."""
        operands: dict[str, Operand] = {}
        for name, tensor in taken.items():
            found = self._operand(tensor)
            if isinstance(found, Refusal):
                return Refusal(f"{_CALLED[name]} {found}")
            operands[name] = found
        return self._joined(operands, rule, output)

    def _smooth(self, taken: Mapping[str, Tensor], rule: ScoreRule, output: Tensor) -> AttentionSite | Refusal:
        """The site where queries or keys are any smooth function of what their maps put out."""
        found: dict[str, SmoothOperand] = {}
        for name in "qk":
            operand = smooth_operand(taken[name], self.hooks.leaves)
            if isinstance(operand, Refusal):
                return Refusal(f"{_CALLED[name]} {operand}")
            strange = [source.site for source in operand.sources if self._weight(source.site) is None]
            if strange:
                return Refusal(f"{_CALLED[name]} {self._other_source(taken[name], strange[0])}")
            found[name] = operand
        v = self._operand(taken["v"])
        if isinstance(v, Refusal):
            return Refusal(f"{_CALLED['v']} {v}")
        value = plain(v.maps)
        if value is None or float(value.cos[0, 0]) != 1:
            return Refusal("its values are changed after their linear map")
        out = self._output_map(output)
        if isinstance(out, Refusal):
            return out
        elsewhere = self._used_elsewhere([v, *found["q"].sources, *found["k"].sources], out.use)
        if elsewhere is not None:
            return elsewhere
        return self._smooth_joined(found, replace(v, features=v.features[:, value.order]), rule, output, out)

    def _smooth_joined(
        self,
        found: Mapping[str, SmoothOperand],
        v: Operand,
        rule: ScoreRule,
        output: Tensor,
        out: OutputProjection,
    ) -> AttentionSite | Refusal:
        sources: dict[str, SmoothSource | Operand] = {"v": v}
        for name, operand in found.items():
            sources |= {f"{name}{k + 1 if k else ''}": source for k, source in enumerate(operand.sources)}
        projections, tokens = dict[str, HeadProjection](), dict[str, Tensor]()
        for name, source in sources.items():
            use = self._weight(source.site)
            assert use is not None and use.inputs is not None
            projections[name] = HeadProjection(use, self._shift(source.site), source.features.cpu(), source.heads)
            tokens[name] = source.grouping.arrange(use.inputs.detach().flatten(0, -2))
        lengths = {"q": set[int](), "kv": set[int]()}
        for name, found_tokens in tokens.items():
            lengths["q" if name[0] == "q" else "kv"].add(found_tokens.shape[1])
        if any(len(own) > 1 for own in lengths.values()):
            return Refusal("its queries, or its keys and values, are made of different positions")
        gates = self._gates(out, projections, tokens["q"], output)
        if isinstance(gates, Refusal):
            return gates
        shifts = {n: own.shift for n, own in projections.items()}
        rows = {n: None if own is None else self._rows(own, projections[n]) for n, own in shifts.items()}
        rows |= {name: own.rows for name, own in gates.items()}
        layer, X = smooth_heads(
            found,
            {name: self._pieces(own) for name, own in projections.items()} | {"o": self._output_pieces(out, output)},
            rows,
            tokens,
            {"o": 1} | {name: own.heads for name, own in projections.items()},
            [
                _score_options(rule, head, found["q"].rows.shape[3], 1.0, self.call.sink)
                for head in range(output.shape[1])
            ],
        )
        return self._site(layer, X, projections, out, gates, output)

    def _pieces(self, projection: HeadProjection) -> list[Tensor]:
        return projection.matrices(self._values(projection.use))

    def _output_pieces(self, out: OutputProjection, output: Tensor) -> list[Tensor]:
        """The output projection by head, or what stands for it in front of a gate: the heads as they are."""
        heads, width = output.shape[1], output.shape[3]
        if out.between is not None:
            return [torch.eye(width, dtype=output.dtype, device=output.device)] * heads
        return self._pieces(self._output_heads(out, output))

    def _output_heads(self, out: OutputProjection, output: Tensor) -> HeadProjection:
        taken = torch.arange(output.shape[1] * output.shape[3], device="cpu").reshape(output.shape[1], -1)
        return HeadProjection(out.use, None, taken, of_inputs=True)

    def _gates(
        self, out: OutputProjection, projections: Mapping[str, HeadProjection], tokens: Tensor, output: Tensor
    ) -> dict[str, _Gate] | Refusal:
        """The linear maps whose outputs change what the heads put out, by name; a refusal where they do not fit."""
        found: dict[str, _Gate] = {}
        sources = () if out.between is None else out.between.sources
        if len(sources) > _MOST_GATES:
            many = f"{len(sources)} linear maps"
            return Refusal(f"the output of its heads is changed by {many} before its output projection")
        for k, source in enumerate(sources):
            use = self._weight(source.site)
            if use is None or use.inputs is None:
                return CHANGED
            own = set(source.features.flatten().tolist())
            if any(p.use.site == use.site and own & set(p.features.flatten().tolist()) for p in projections.values()):
                return Refusal("the output of its heads is changed by its own queries, keys or values")
            if not torch.equal(source.grouping.arrange(use.inputs.detach().flatten(0, -2)), tokens):
                return Refusal("the output of its heads is changed by a linear map of other tokens")
            shift = self._shift(source.site)
            projection = HeadProjection(use, shift, source.features.cpu(), first=output.shape[1] + k)
            rows = None if shift is None else self._rows(shift, projection)
            found[f"g{k + 1 if k else ''}"] = _Gate(projection, self._pieces(projection)[0], rows)
        elsewhere = self._used_elsewhere(sources, out.use) if sources else None
        return found if elsewhere is None else elsewhere

    def _site(
        self,
        layer: MultiHeadAttention,
        X: Tensor,
        projections: dict[str, HeadProjection],
        out: OutputProjection,
        gates: Mapping[str, _Gate],
        output: Tensor,
    ) -> AttentionSite:
        """The layer with its output projection; or, in front of what stands before that, its heads beside the gates."""
        if out.between is None:
            return AttentionSite(layer, X, {**projections, "o": self._output_heads(out, output)}, out.grouping)
        biased = any(own.shift is not None for own in (*projections.values(), *(g.projection for g in gates.values())))
        logits = [TokenwiseHead(gate.extended(biased)) for gate in gates.values()]
        return AttentionSite(
            SideBySideAttention([*layer.heads, *logits]),
            X,
            projections | {name: gate.projection for name, gate in gates.items()},
            out.grouping,
            projected=out.use,
            before=out.between.curvature_before,
        )

    def _used_elsewhere(self, sources: Sequence[SmoothSource | Operand], out: Use) -> Refusal | None:
        """Whether what this attention takes of its maps goes anywhere else, as where layers share keys and values."""
        weights = [use for use in self.hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN) and use is not out]
        ends = [use.inputs for use in weights if use.inputs is not None]
        ends += [tensor for call in self.others for tensor in call]
        for end in ends:
            if not end.requires_grad or end.grad_fn is None:
                continue
            leaves = [self.hooks.leaves[source.site] for source in sources]
            slopes = torch.autograd.grad(end, leaves, torch.ones_like(end), retain_graph=True, allow_unused=True)
            for source, slope in zip(sources, slopes, strict=True):
                if slope is not None and bool(slope[..., source.features.flatten().to(slope.device)].any()):
                    return Refusal("its queries, keys or values are used elsewhere too")
        return None

    def _operand(self, taken: Tensor) -> Operand | Refusal:
        site = source_of(taken, self.hooks.leaves)
        if isinstance(site, Refusal):
            return site
        if self._weight(site) is None:
            return self._other_source(taken, site)
        if is_curved(taken, [self.hooks.leaves[site]]):
            return Refusal("are not a linear function of the output of their map")
        return operand_of(taken, site, self.hooks.leaves[site])

    def _other_source(self, taken: Tensor, site: int) -> Refusal:
        """What an operand comes from that does not come from a linear map: another operation, or a gain."""
        for step in steps_of(taken):
            parameter = self.hooks.unknown_steps.get(step)
            if parameter is not None:
                through = self.hooks.record.unknown[parameter]
                return Refusal(f"come through {through} with {parameter}, which is not known to be a linear map")
        gains = [use.parameter for use in self.hooks.record.uses if use.site == site and use.kind is Kind.GAIN]
        entrywise = f"are multiplied with {gains[0]} entry by entry, as by a norm," if gains else "are changed"
        return Refusal(f"{entrywise} after the last linear map")

    def _by_head(self, tensor: Tensor) -> Tensor | None:
        """``[sequence, head, position, e]``, from a tensor in which sequences and heads may be one axis."""
        if tensor.ndim == 4 and tensor.shape[0] == self.sequences:
            return tensor
        if tensor.ndim == 3 and tensor.shape[0] % self.sequences == 0:
            return tensor.unflatten(0, (self.sequences, -1))
        return None

    def _joined(self, operands: Mapping[str, Operand], rule: ScoreRule, output: Tensor) -> AttentionSite | Refusal:
        uses = {name: use for name, operand in operands.items() if (use := self._weight(operand.site)) is not None}
        shifts = {name: self._shift(operand.site) for name, operand in operands.items()}
        tokens = self._tokens(uses, operands)
        if tokens is None:
            return Refusal("its queries, keys and values are made of different tokens")
        turning = _turning(operands)
        if isinstance(turning, Refusal):
            return turning
        out = self._output_map(output)
        if isinstance(out, Refusal):
            return out
        projections = {
            name: HeadProjection(uses[name], shifts[name], operand.features[:, turning.orders[name]], operand.heads)
            for name, operand in operands.items()
        }
        elsewhere = None if out.between is None else self._used_elsewhere(list(operands.values()), out.use)
        gates = elsewhere or self._gates(out, projections, tokens, output)
        if isinstance(gates, Refusal):
            return gates
        heads = {"o": 1} | {name: projection.heads for name, projection in projections.items()}
        rows = {name: None if own is None else self._rows(own, projections[name]) for name, own in shifts.items()}
        rows |= {name: own.rows for name, own in gates.items()}
        layer = heads_of(
            {name: self._pieces(own) for name, own in projections.items()} | {"o": self._output_pieces(out, output)},
            rows,
            heads,
            FactoredValueAttention if turning.tables is None else RotaryAttention,
            [
                _options(turning, rule, head, projections["q"].features.shape[1], self.call.sink)
                for head in range(output.shape[1])
            ],
        )
        biased = any(own is not None for own in rows.values())
        return self._site(layer, with_ones(tokens) if biased else tokens, projections, out, gates, output)

    def _values(self, use: Use) -> Tensor:
        return self.problem.params[use.parameter].detach()

    def _rows(self, shift: Use, projection: HeadProjection) -> list[Tensor]:
        values = shift.matrix(self._values(shift))
        return [values[own][None] for own in projection.features.to(values.device)]

    def _weight(self, site: int) -> Use | None:
        found = [use for use in self.hooks.record.uses if use.site == site and use.kind in (Kind.IN_OUT, Kind.OUT_IN)]
        return found[0] if len(found) == 1 else None

    def _shift(self, site: int) -> Use | None:
        shifts = [use for use in self.hooks.record.uses if use.kind is Kind.SHIFT]
        own = [use for use in shifts if use.site == site or use.parameter == self.hooks.shifts.get(site)]
        return own[0] if own else None

    def _tokens(self, uses: Mapping[str, Use], operands: Mapping[str, Operand]) -> Tensor | None:
        """What enters all three maps, ``[sequence, position, feature]``."""
        found = []
        for name, use in uses.items():
            assert use.inputs is not None
            found.append(operands[name].grouping.arrange(use.inputs.detach().flatten(0, -2)))
        first, *others = found
        return first if all(torch.equal(first, other) for other in others) else None

    def _output_map(self, output: Tensor) -> OutputProjection | Refusal:
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
        found = projection_behind(self.call.output, output, uses, leaves, self.problem.params)
        if isinstance(found, Refusal) or found.between is None or not depends(found.between.rows, [self.call.raw]):
            return found
        return Refusal("the output of its heads is changed by its own scores")


_MOST_GATES = 3
"""Linear maps that may change what the heads put out."""


@dataclass(frozen=True, eq=False)
class _Gate:
    """A linear map whose outputs change what the heads put out.

    Attributes:
        projection: Where it lies in its parameter.
        weight: In the order ``x @ W``.
        rows: Its bias, a row; None where it has none.
    """

    projection: HeadProjection
    weight: Tensor
    rows: list[Tensor] | None

    def extended(self, biased: bool) -> Tensor:
        """The weight, with a last row for the bias where the layer has some."""
        if not biased:
            return self.weight
        row = self.weight.new_zeros(1, self.weight.shape[1]) if self.rows is None else self.rows[0]
        return torch.cat([self.weight, row])


@dataclass(frozen=True, eq=False)
class _Turning:
    """How features of q, k and v enter.

    Attributes:
        orders: Features of a piece, in the order in which they enter.
        factor: What the products of queries and keys are multiplied with on the way.
        tables: Cosines and sines by sequence and position; None where nothing is turned.
    """

    orders: Mapping[str, Tensor]
    factor: float
    tables: tuple[Tensor, Tensor] | None


def _turning(operands: Mapping[str, Operand]) -> _Turning | Refusal:
    q, k, v = (operands[name] for name in "qkv")
    value = plain(v.maps)
    if value is None or float(value.cos[0, 0]) != 1:
        return Refusal("its values are changed after their linear map")
    straight = [plain(operand.maps) for operand in (q, k)]
    if straight[0] is not None and straight[1] is not None:
        orders = {"q": straight[0].order, "k": straight[1].order, "v": value.order}
        return _Turning(orders, float(straight[0].cos[0, 0] * straight[1].cos[0, 0]), None)
    changed = Refusal(
        "its queries and keys are changed after their linear maps by something other than a rotation of pairs"
    )
    pairs = [pairs_of(operand.maps) for operand in (q, k)]
    if pairs[0] is None or pairs[0] != pairs[1]:
        return changed
    rows = [first for first, _ in pairs[0]] + [second for _, second in pairs[0]]
    of_queries, of_keys = (rotated_factor(operand.maps, rows) for operand in (q, k))
    if of_queries is None or of_keys is None:
        return changed
    tables = [_by_sequence(operand, found) for operand, found in ((q, of_queries), (k, of_keys))]
    factor = float((tables[0] * tables[1]).sum() / tables[1].square().sum())
    if not close(tables[0], factor * tables[1]):
        return Refusal("its queries are rotated differently from its keys")
    cos, sin = tables[1]
    return _Turning({"q": of_queries.order, "k": of_keys.order, "v": value.order}, factor, (cos, sin))


def _by_sequence(operand: Operand, found: RotatedFactor) -> Tensor:
    """Cosines and sines, ``[2, sequence, position, e]``."""
    assert found.sin is not None
    return torch.stack([operand.grouping.arrange(table) for table in (found.cos, found.sin)])


def _options(turning: _Turning, rule: ScoreRule, head: int, width: int, sink: bool) -> dict[str, Any]:
    """What one head takes beside its weights."""
    found = _score_options(rule, head, width, turning.factor, sink)
    if turning.tables is not None:
        found["cos"], found["sin"] = turning.tables
    return found


def _score_options(rule: ScoreRule, head: int, width: int, factor: float, sink: bool) -> dict[str, Any]:
    """How one head makes weights of products; a sink's logit is part of the bias."""
    found: dict[str, Any] = {"temperature": 1 / (rule.scale * factor * math.sqrt(width))}
    if sink:
        found["sink"] = 0.0
    if rule.cap is not None:
        found["activation"] = SoftCapped(rule.cap)
    if rule.bias is not None:
        found["bias"] = rule.bias[:, head]
    if not bool(rule.visible[:, head].all()):
        found["mask"] = rule.visible[:, head]
    return found


def find_site(problem: Problem, batch: Batch, own: Transformer | None) -> AttentionSite | Refusal:
    """The last attention layer at a batch; a refusal where there is none that the closed forms know.

    Whether what lies behind acts on every position alone is checked here for the library's own models, of which that
    rest can be called, and for others when their output projection is looked at.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        own: A copy of its model, if that is one of the library's own.
    """
    if own is None:
        return locate_attention(problem, batch)
    with torch.no_grad():
        site = toy_site(own, batch)
        if isinstance(site, Refusal):
            return site
        if site.tokens.ndim != 3:
            return Refusal("its tokens have no batch axis")
        if not _position_wise(problem, site, batch):
            return Refusal("the layers after it mix positions")
        return site


def _position_wise(problem: Problem, site: AttentionSite, batch: Batch) -> bool:
    """Whether no position reaches another, in the Jacobian behind the layer and in the Hessian of the loss."""
    assert site.downstream is not None
    with torch.enable_grad():
        F = site.output.detach().requires_grad_()
        outputs = site.downstream(F)
        point = outputs.detach().requires_grad_()
        value = problem.loss(point, batch)
        expect_twice_differentiable("loss", value)
        (slope,) = torch.autograd.grad(value, point, create_graph=True)
    with refusals_of(lambda: "loss"):
        return acts_alone(outputs, F) and (not slope.requires_grad or acts_alone(slope, point))


def acts_alone(value: Tensor, at: Tensor) -> bool:
    """Whether the derivative of a value by what it is taken at couples no two positions."""
    u = random_like(value).flatten(0, 1)
    positions = torch.arange(len(u), device=u.device)

    def vjp(cotangent: Tensor) -> list[Tensor]:
        (found,) = torch.autograd.grad(value, at, cotangent.reshape(value.shape), retain_graph=True)
        return [found.flatten(0, 1)]

    return couples_no_groups(vjp, u, positions, positions)
