"""What lies between the linear maps behind a site, step by step, as far as it has a simple form.

The outputs of all maps are cut from what made them, so that the inputs of a map are a function of the outputs of some
maps before it, its sources. Attention has a step of its own; what has no form is left to HVPs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.errors import Refusal
from hessianlens.network.base.every_attention import EveryAttention, RecordedAttention
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.operands import Rows, is_curved, operand_of, vjp_by_position
from hessianlens.network.base.recognition import Grouping, close
from hessianlens.network.base.uses import Kind, Use
from hessianlens.network.routes.linear_map.attention_step import AttentionStep, HeadFeatures
from hessianlens.network.routes.linear_map.forms import HALF, EntryByEntry, Form, Layout, form_of
from hessianlens.problems import Batch, Problem


@dataclass(frozen=True, eq=False)
class MapStep:
    """A map and what lies between it and its sources.

    Attributes:
        site: The map.
        weight: It, inputs by outputs, or a vector of gains, again for every head where heads share them.
        form: How its inputs follow from its sources.
        inputs: Identity of its inputs: two maps may share them.
        whole: Whether it is a map of the network, and not half of one.
    """

    site: float
    weight: Tensor
    form: Form
    inputs: int
    whole: bool = True

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
        sites: The maps, or a table, or a map behind which a bias is added by itself, with the features they put out.
        parameters: What enters at one of them, with the site of its operation.
        by_site: The steps.
        last: How the inputs of the last map, or the outputs, follow from their sources.
        shifted: Site of the map behind which a bias is added by itself, by that of the bias.
        rows: Rows of the table that are looked up, by position; None for maps.
        summed: Whether the table is one of positions, looked up once for all sequences: it has the sum over these of
            what is found of the table of tokens that it is added to.
    """

    sites: Mapping[int, int]
    parameters: frozenset[tuple[str, int]]
    by_site: dict[float, Step]
    last: Form
    shifted: Mapping[int, int]
    rows: Tensor | None
    summed: bool = False

    @property
    def length(self) -> int:
        """Positions of a sequence that some attention couples; 0 where there is none."""
        return next((step.length for step in self.by_site.values() if isinstance(step, AttentionStep)), 0)

    def width(self, site: float) -> int:
        """Features that are put out at a site."""
        return self.sites[int(site)] if site in self.sites else self.by_site[site].width


def wide_maps(steps: FollowingSteps, step: MapStep) -> list[MapStep] | None:
    """The first maps of an MLP whose last map a step is, if they have more outputs and the same inputs."""
    form = step.form
    if not isinstance(form, EntryByEntry) or step.gain or len(step.weight) <= step.weight.shape[1]:
        return None
    first = [steps.by_site.get(source) for source in form.sources]
    known = [one for one in first if isinstance(one, MapStep) and not one.gain]
    alike = len(known) == len(first) and len({one.inputs for one in known}) == 1
    others = [one for one in steps.by_site.values() if one is not step]
    elsewhere = [steps.last, *(one.form if isinstance(one, MapStep) else one for one in others)]
    alone = not any(set(form.sources) & set(other.sources) for other in elsewhere)
    return known if alike and alone else None


def attention_before(steps: FollowingSteps, step: MapStep) -> AttentionStep | None:
    """The attention whose heads, side by side, are all that a map takes, if its maps can be taken as one."""
    form = step.form
    if (
        not isinstance(form, EntryByEntry)
        or len(form.sources) > 1
        or form.second
        or form.first[form.sources[0]] is not None
    ):
        return None
    found = steps.by_site.get(form.sources[0])
    if not isinstance(found, AttentionStep) or joint_maps(steps, found) is None:
        return None
    others = [one for one in steps.by_site.values() if one is not step]
    elsewhere = [steps.last, *(one.form if isinstance(one, MapStep) else one for one in others)]
    return None if any(found.site in other.sources for other in elsewhere) else found


def joint_maps(steps: FollowingSteps, step: AttentionStep) -> dict[float, MapStep] | None:
    """The maps of queries, keys and values, if they have the same inputs and nothing else reads what they put out."""
    found = {site: steps.by_site.get(site) for site in step.sources}
    maps = {site: one for site, one in found.items() if isinstance(one, MapStep) and not one.gain}
    if len(maps) < len(found) or len({one.inputs for one in maps.values()}) > 1:
        return None
    elsewhere = [one.form if isinstance(one, MapStep) else one for one in steps.by_site.values() if one is not step]
    read = {site for one in (steps.last, *elsewhere) for site in one.sources}
    return None if read & set(maps) else maps


def passed_within(steps: FollowingSteps, maps: Sequence[MapStep]) -> set[float]:
    """Sites that are passed together with a map behind them, whose own curvature is never formed."""
    found: set[float] = set()
    for step in maps:
        found |= {one.site for one in wide_maps(steps, step) or ()}
        if (attention := attention_before(steps, step)) is not None:
            found |= {attention.site, *(joint_maps(steps, attention) or ())}
    return found


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
    sites = _with_the_same_inputs(hooks, hooks.shifts.get(first.site, first.site))
    seen = [one for one in every.found if min(sites) < one.site]
    layout = _layout(every, hooks, sites)
    if not sites <= set(hooks.leaves) or any(min(sites) < place for place in every.refused):
        return None
    if len({one.site for one in seen}) < len(seen):
        return None
    if tables and layout.rows(hooks.leaves[first.site]) is None:
        added = _added_to(hooks, first, layout)
        found_there = None if added is None else downstream_steps(problem, batch, added, last)
        return None if found_there is None else replace(found_there, summed=True)
    widths = {site: _width(hooks.leaves[site], layout) for site in sites}
    reached: dict[float, Tensor] = {site: hooks.leaves[site] for site in sites}
    found: dict[float, Step] = {}
    halves: set[float] = set()
    step: Step | None
    for node in _nodes(hooks, seen, sites, last):
        if isinstance(node, RecordedAttention):
            step, leaf = _attention_step(node, reached, layout), node.leaf
        elif not (sources := _sources(node.inputs, reached)):
            continue
        elif (form := form_of(node.inputs, sources, layout)) is None:
            return None
        elif last is not None and node.site == last.site:
            return FollowingSteps(widths, _parameters(hooks, sites), found, form, hooks.shifts, _rows(hooks, first))
        else:
            step, leaf = _map_step(problem, hooks, node, form, layout), hooks.leaves[node.site]
            halved = {int(site - HALF) for site in form.sources if site not in reached}
            if halves & set(sources) or not _halve(found, halved):
                return None
            halves |= halved
        if step is None:
            return None
        if isinstance(step, MapStep) or step.operands:
            found[node.site], reached[node.site] = step, leaf
    sources = {} if last is not None else _sources(outputs, reached)
    form = form_of(outputs, sources, layout) if sources else None
    if form is None:
        return None
    return FollowingSteps(widths, _parameters(hooks, sites), found, form, hooks.shifts, _rows(hooks, first))


@dataclass(frozen=True, eq=False)
class _MapSeen:
    """A map in the run that was cut."""

    site: int
    inputs: Tensor
    uses: tuple[Use, ...]


def _halve(found: dict[float, Step], sites: set[int]) -> bool:
    """Make two maps of each of some that a gate packs into one; False where that cannot be, as for the first one."""
    for site in sites:
        packed = found.get(site)
        if not isinstance(packed, MapStep) or packed.gain:
            return False
        for place, weight in zip((site, site + HALF), packed.weight.chunk(2, 1), strict=True):
            found[place] = MapStep(place, weight, packed.form, packed.inputs, whole=False)
    return True


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


def _added_to(hooks: Hooks, first: Use, layout: Layout) -> Use | None:
    """The look-up of every position of every sequence that a table of positions is added to, as far as sizes tell."""
    shape = (layout.sequences * layout.length, first.outputs[-1])
    others = [use for use in hooks.record.uses if use.kind is Kind.LOOK_UP and use.parameter != first.parameter]
    return next((one for one in others if (torch.Size(one.outputs[:-1]).numel(), one.outputs[-1]) == shape), None)


def _rows(hooks: Hooks, first: Use) -> Tensor | None:
    """Rows of a table that are looked up at a use."""
    found = [use.rows for use in hooks.record.uses if (use.parameter, use.site) == (first.parameter, first.site)]
    return None if not found or found[0] is None else found[0].flatten()


def _parameters(hooks: Hooks, sites: frozenset[int]) -> frozenset[tuple[str, int]]:
    return frozenset((use.parameter, use.site) for use in hooks.record.uses if use.site in sites)


def _layout(every: EveryAttention, hooks: Hooks, sites: frozenset[int]) -> Layout:
    """Sequences and positions as attention has them, or the positions of a map where there is none."""
    if every.found:
        sequences, _, length, _ = every.found[0].q.shape
        return Layout(sequences, length)
    return Layout(hooks.leaves[min(sites)][..., 0].numel() if min(sites) in hooks.leaves else 0, 1)


def _map_step(problem: Problem, hooks: Hooks, node: _MapSeen, form: Form, layout: Layout) -> MapStep | None:
    """A map as a step; None where several parameters are multiplied at it, or other than by its inputs."""
    if len(node.uses) > 1:
        return None
    weight, rows = _weight(problem, hooks, node.uses[0]), layout.rows(node.inputs)
    if weight is None or rows is None:
        return None
    heads = rows.shape[1] // len(weight)
    if heads > 1:  # a gain of every head; a map of every head by itself is none of all features
        if weight.ndim > 1:
            return None
        weight = weight.repeat(heads)
    return MapStep(node.site, weight, form, id(node.inputs))


def _attention_step(seen: RecordedAttention, reached: Mapping[float, Tensor], layout: Layout) -> AttentionStep | None:
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
        if layout != Layout(sequences, length) or (rows := layout.reader(leaf)) is None:
            return None
        operand = operand_of(taken, int(site), leaf, rows)
        if isinstance(operand, Refusal) or operand.grouping != Grouping(sequences, length):
            return None
        operands[name] = HeadFeatures.of(operand, rows(leaf).shape[1])
        if not _comes_from(taken, leaf, operands[name], rows):
            return None
    return AttentionStep(seen.site, seen.detached(), operands)


def _comes_from(taken: Tensor, leaf: Tensor, features: HeadFeatures, rows: Rows) -> bool:
    """Whether an operand is made in the same way for all heads: it was seen at one of them."""
    drawn = random_like(taken)
    found = features.at_map(drawn[..., None], slice(None))[..., 0]
    return close(found, vjp_by_position(taken, leaf, drawn, rows))


def _width(leaf: Tensor, layout: Layout) -> int:
    rows = layout.rows(leaf)
    return leaf.shape[-1] if rows is None else rows.shape[1]


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
