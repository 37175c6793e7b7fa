"""What lies between the linear maps behind a site, step by step, as far as it has one of two simple forms.

The outputs of all maps are cut from what made them, so that the inputs ``a`` of a map are a function of the outputs of
some maps before it, its sources. Two forms are known again by random derivatives:

    entry by entry   a_k = f(z_k, z'_k, ...)             a sum with the stream, an activation, a gate
    norm             a = P t / sigma(t),  t = z + z' + ...   with P the identity, or what takes the mean away

Attention has a step of its own. Anything else is left to HVPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.network.base.every_attention import EveryAttention, RecordedAttention
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.operands import is_curved, operand_of
from hessianlens.network.base.recognition import Grouping, close, entrywise_slope
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.linear_map.attention_step import AttentionStep, HeadFeatures
from hessianlens.problems import Batch, Problem


@dataclass(frozen=True, eq=False)
class EntryByEntry:
    """``a_k = f(z_k, z'_k, ...)``.

    Attributes:
        first: df/dz of every source, ``[position, feature]``; None where it is one everywhere.
        second: d^2 f / dz dz' of pairs of sources that have any, the same.
    """

    first: dict[float, Tensor | None]
    second: dict[tuple[float, float], Tensor]

    @property
    def sources(self) -> tuple[float, ...]:
        """Sites of z, z', ..."""
        return tuple(self.first)


@dataclass(frozen=True, eq=False)
class Norm:
    """``a = P t / sigma(t)`` of the sum t of its sources.

    Attributes:
        sources: Sites that t is the sum of, with other things.
        outputs: a, ``[position, feature]``.
        scale: ``1 / sigma``, ``[position, 1]``.
        centred: Whether P takes the mean away.
    """

    sources: tuple[float, ...]
    outputs: Tensor
    scale: Tensor
    centred: bool

    def vjp(self, matrices: Tensor, chosen: slice) -> Tensor:
        """``J^T A`` of every position, ``[position, feature, .]``: J is symmetric, ``(P - a a^T / d) / sigma``."""
        a, scale = self.outputs[chosen, :, None], self.scale[chosen, :, None]
        along = (a.transpose(1, 2) / a.shape[1]) @ matrices
        found = torch.baddbmm(matrices, a, along, alpha=-1)
        if self.centred:
            found -= found.mean(1, keepdim=True)
        return found.mul_(scale)

    def second_derivative(self, gradient: Tensor, chosen: slice) -> Tensor:
        """``sum_k g_k d^2 a_k / dt^2`` of every position.

        ``-(P g a^T + a (P g)^T + (g . a) (P - 3 a a^T / d)) / (d sigma^2)``
        """
        a, scale = self.outputs[chosen], self.scale[chosen]
        width = a.shape[1]
        v = gradient - gradient.mean(1, keepdim=True) if self.centred else gradient
        along = (gradient * a).sum(1, keepdim=True)
        left = torch.stack([v - 3 / width * along * a, a], 2)
        right = torch.stack([a, v], 2)
        found = left @ right.transpose(1, 2)
        found.diagonal(dim1=1, dim2=2).add_(along)
        if self.centred:
            found -= (along / width)[..., None]
        return found.mul_((-(scale**2) / width)[..., None])


Form = EntryByEntry | Norm


@dataclass(frozen=True, eq=False)
class MapStep:
    """A map and what lies between it and its sources.

    Attributes:
        site: The map.
        weight: It, inputs by outputs, or a vector of gains.
        form: How its inputs follow from its sources.
        inputs: Identity of its inputs: two maps may share them.
    """

    site: int
    weight: Tensor
    form: Form
    inputs: int

    @property
    def gain(self) -> bool:
        """Whether it scales its inputs one by one."""
        return self.weight.ndim == 1

    @property
    def width(self) -> int:
        """Features that it puts out."""
        return self.weight.shape[-1]


Step = MapStep | AttentionStep


@dataclass(frozen=True, eq=False)
class FollowingSteps:
    """All that follows some maps with the same inputs, as far as those of the network's last map, or its outputs.

    Attributes:
        sites: The maps, or a table, or a map behind which a bias is added by itself.
        parameters: What enters at one of them, with the site of its operation.
        by_site: The steps.
        last: How the inputs of the last map, or the outputs, follow from their sources.
        shifted: The map behind which a bias is added by itself, by the parameter of the bias.
    """

    sites: frozenset[int]
    parameters: frozenset[tuple[str, int]]
    by_site: dict[float, Step]
    last: Form
    shifted: dict[str, int]

    @property
    def length(self) -> int:
        """Positions of a sequence that some attention couples; 0 where there is none."""
        return next((step.length for step in self.by_site.values() if isinstance(step, AttentionStep)), 0)


def downstream_steps(problem: Problem, batch: Batch, first: Use, last: Use | None) -> FollowingSteps | None:
    """What follows a map and those with the same inputs, or a table; None where something has no simple form.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        first: The map, the table, or a bias that is added behind a map by itself.
        last: The network's last map, where the curvature is known at its inputs; None where it is at the outputs.
    """
    tables = {first.site} if first.kind is Kind.LOOK_UP else ()
    hooks = Hooks(problem.params, cut=True, cut_tables=tables)
    with problem.scope(), torch.enable_grad(), hooks, EveryAttention(problem, batch, hooks) as every:
        outputs = problem.forward(problem.params, batch)
    shifted = {parameter: site for site, parameter in hooks.shifts.items()}
    sites = _with_the_same_inputs(hooks, shifted.get(first.parameter, first.site))
    seen = [one for one in every.found if min(sites) < one.site]
    if not sites <= set(hooks.leaves) or any(min(sites) < place for place in every.refused):
        return None
    if len({one.site for one in seen}) < len(seen):
        return None
    reached: dict[float, Tensor] = {site: hooks.leaves[site] for site in sites}
    found: dict[float, Step] = {}
    step: Step | None
    for node in _nodes(hooks, seen, sites, last):
        if isinstance(node, RecordedAttention):
            step, leaf = _attention_step(node, reached), node.leaf
        elif not (sources := _sources(node.inputs, reached)):
            continue
        elif (form := _form(node.inputs, sources)) is None:
            return None
        elif last is not None and node.site == last.site:
            return FollowingSteps(sites, _parameters(hooks, sites), found, form, shifted)
        else:
            step, leaf = _map_step(problem, hooks, node, form), hooks.leaves[node.site]
        if step is None:
            return None
        if isinstance(step, MapStep) or step.operands:
            found[node.site], reached[node.site] = step, leaf
    sources = {} if last is not None else _sources(outputs, reached)
    form = _form(outputs, sources) if sources else None
    return None if form is None else FollowingSteps(sites, _parameters(hooks, sites), found, form, shifted)


@dataclass(frozen=True, eq=False)
class _MapSeen:
    """A map in the run that was cut."""

    site: int
    inputs: Tensor
    uses: tuple[Use, ...]


def _nodes(
    hooks: Hooks, seen: Sequence[RecordedAttention], sites: frozenset[int], last: Use | None
) -> list[_MapSeen | RecordedAttention]:
    """Maps and attentions behind some sites in the order of the network, as far as the last map."""
    by_site: dict[int, list[Use]] = {}
    for use in hooks.record.uses:
        if use.inputs is not None and min(sites) < use.site and (last is None or use.site <= last.site):
            by_site.setdefault(use.site, []).append(use)
    maps = [_MapSeen(site, own[0].inputs, tuple(own)) for site, own in by_site.items() if own[0].inputs is not None]
    return sorted([*maps, *seen], key=lambda node: node.site)


def _with_the_same_inputs(hooks: Hooks, site: int) -> frozenset[int]:
    """A site with others at which other weights are multiplied with the same."""
    weights = [use for use in hooks.record.uses if use.kind in (Kind.IN_OUT, Kind.OUT_IN)]
    own = [use.inputs for use in weights if use.site == site]
    return frozenset([site, *(use.site for use in weights if any(use.inputs is inputs for inputs in own))])


def _parameters(hooks: Hooks, sites: frozenset[int]) -> frozenset[tuple[str, int]]:
    return frozenset((use.parameter, use.site) for use in hooks.record.uses if use.site in sites)


def _map_step(problem: Problem, hooks: Hooks, node: _MapSeen, form: Form) -> MapStep | None:
    """A map as a step; None where several parameters are multiplied at it, or other than by its inputs."""
    if len(node.uses) > 1:
        return None
    weight = _weight(problem, hooks, node.uses[0])
    return None if weight is None else MapStep(node.site, weight, form, id(node.inputs))


def _attention_step(seen: RecordedAttention, reached: Mapping[float, Tensor]) -> AttentionStep | None:
    """An attention as a step; None where its queries, keys or values are made in other ways."""
    sequences, _, length, _ = seen.q.shape
    operands: dict[str, HeadFeatures] = {}
    for name in "qkv":
        taken = getattr(seen, name)
        sources = _sources(taken, reached)
        if not sources:
            continue
        taken = taken[:, :, :length]  # a sink is made of nothing
        ((site, leaf), *others) = sources.items()
        if others or taken.shape[2] < length or is_curved(taken, [leaf]):
            return None
        operand = operand_of(taken, int(site), leaf)
        if isinstance(operand, Refusal) or operand.grouping != Grouping(sequences, length):
            return None
        operands[name] = HeadFeatures.of(operand, leaf.shape[-1])
    return AttentionStep(seen.site, seen.detached(), operands)


def _sources(value: Tensor, leaves: Mapping[float, Tensor]) -> dict[float, Tensor]:
    if not value.requires_grad:
        return {}
    found = torch.autograd.grad(
        value, list(leaves.values()), torch.ones_like(value), retain_graph=True, allow_unused=True
    )
    return {site: leaf for (site, leaf), slope in zip(leaves.items(), found, strict=True) if slope is not None}


def _weight(problem: Problem, hooks: Hooks, use: Use) -> Tensor | None:
    """What a map multiplies its inputs with, checked by what it put out; a gain may be one more than its parameter."""
    assert use.inputs is not None
    matrix = use.matrix(problem.params[use.parameter].detach())
    beside = [one for one in hooks.record.uses if one.site == use.site and one.kind is Kind.SHIFT]
    shift = sum((one.matrix(problem.params[one.parameter].detach()) for one in beside), matrix.new_zeros(()))
    inputs, outputs = use.inputs.detach(), hooks.leaves[use.site].detach()
    if use.kind is not Kind.GAIN:
        return matrix if close(inputs @ matrix + shift, outputs) else None
    return next((gain for gain in (matrix, 1 + matrix) if close(inputs * gain + shift, outputs)), None)


def _form(value: Tensor, sources: Mapping[float, Tensor]) -> Form | None:
    if any(leaf.numel() != value.numel() or leaf.shape[-1] != value.shape[-1] for leaf in sources.values()):
        return None
    return _entry_by_entry(value, sources) or _norm(value, sources)


def _entry_by_entry(value: Tensor, sources: Mapping[float, Tensor]) -> EntryByEntry | None:
    slopes: dict[float, Tensor] = {}
    for site, leaf in sources.items():
        slope = entrywise_slope(value, leaf, graph=True)
        if slope is None:
            return None
        slopes[site] = slope
    second = {}
    for one, other in combinations_with_replacement(sources, 2):
        if slopes[one].requires_grad:
            second_slope = entrywise_slope(slopes[one], sources[other])
            if second_slope is None:
                return None
            if bool(second_slope.any()):
                second[one, other] = second_slope.detach().flatten(0, -2)
    first = {site: slope.detach().flatten(0, -2) for site, slope in slopes.items()}
    return EntryByEntry({site: None if bool((slope == 1).all()) else slope for site, slope in first.items()}, second)


def _norm(value: Tensor, sources: Mapping[float, Tensor]) -> Norm | None:
    leaves, drawn = list(sources.values()), random_like(value)
    vjp = torch.autograd.grad(value, leaves, drawn, retain_graph=True, create_graph=True)
    flat = [one.flatten(0, -2) for one in vjp]
    if any(not torch.equal(one, flat[0]) for one in flat[1:]) or not flat[0].requires_grad:
        return None
    outputs, c, r = (tensor.detach().flatten(0, -2) for tensor in (value, drawn, vjp[0]))
    for centred in (True, False):
        unit = Norm(tuple(sources), outputs, torch.ones_like(outputs[:, :1]), centred)
        expected = unit.vjp(c[..., None], slice(None))[..., 0]
        scale = (r * expected).sum(1, keepdim=True) / expected.square().sum(1, keepdim=True)
        found = Norm(tuple(sources), outputs, scale, centred)
        if close(scale * expected, r) and _curves_like(found, vjp[0], leaves, c):
            return found
    return None


def _curves_like(norm: Norm, vjp: Tensor, leaves: Sequence[Tensor], cotangent: Tensor) -> bool:
    """Whether its second derivative is that of the network, between any two sources."""
    u = random_like(vjp, seed=1)
    hvp = torch.autograd.grad(vjp, list(leaves), u, retain_graph=True, allow_unused=True)
    expected = (norm.second_derivative(cotangent, slice(None)) @ u.flatten(0, -2)[..., None])[..., 0]
    return all(one is not None and close(one.flatten(0, -2), expected) for one in hvp)
