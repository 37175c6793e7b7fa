"""The curvature at the maps of a network, backpropagated from the loss.

With g and H the gradient and the Hessian of the loss at what some maps put out, and a map i with ``z_i = a_i W``, its
inputs a function of its sources p, q, ...: where i is done with,

    H_pq  +=  J_p^T W H_ii W^T J_q  +  J_p^T W H_iq  +  (J_q^T W H_ip)^T  +  sum_k (W g_i)_k  d^2 a_k / dz_p dz_q

at every position by itself, and between the positions of a sequence from the last attention on. So what all maps share
is looked at once, where HVPs would go through the whole of the network for every feature of every map. What lies
between two of them is passed at once: of an MLP the curvature at its wide layer is never formed, with
``J = W_1 diag(phi') W_2`` and ``W_1 diag(phi'' * W_2 g) W_1^T``, nor of an attention that at its heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.network.base import thresholds
from hessianlens.network.routes.linear_map.attention_step import AttentionStep
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.network.routes.linear_map.forms import EntryByEntry, Form, Norm
from hessianlens.network.routes.linear_map.live_sites import LiveSites, SiteGroup
from hessianlens.network.routes.linear_map.readout import LossCurvature
from hessianlens.network.routes.linear_map.steps import (
    FollowingSteps,
    MapStep,
    attention_before,
    joint_maps,
    passed_within,
    wide_maps,
)

Others = list[tuple[SiteGroup, Parts]]
"""What a site has to do with groups of others."""

_CHUNK_BYTES = 2**22
"""Room for one matrix per position, of a sequence at the least; see `peak_bytes` for how many are held at once."""
_HELD_ON_THE_WAY = 10
"""Matrices of the stream that are held on the way to the front."""
_HELD_AT_FRONT = 4
"""Matrices of the widest map in front that are held beside the result."""


Pair = tuple[float, float]
"""Sites of rows and columns."""


def backpropagate_curvature(loss: LossCurvature, steps: FollowingSteps, wanted: Pair, room: int) -> dict[Pair, Parts]:
    """The curvature between two maps, and as many others on the way as there is room for; later ones come first.

    Args:
        loss: The curvature at the inputs of the network's last map, or at its outputs.
        steps: What follows the two.
        wanted: The two, or one with itself.
        room: Bytes for others: between maps with the same inputs, and at the nearest behind, those that are not wide.
    """
    kept = {wanted}
    for pair in _worth_keeping(steps):
        if pair not in kept and (size := held_bytes(loss, steps, pair)) <= room:
            kept.add(pair)
            room -= size
    chunks: dict[Pair, list[Parts]] = {}
    for chosen in _chunks(loss, steps.length):
        for pair, parts in _Backpropagation(steps, chosen).on_the_way(loss):
            if pair in kept or pair[::-1] in kept:
                chunks.setdefault(pair, []).append(parts)
    return {pair: _joined(found) for pair, found in chunks.items()}


def _worth_keeping(steps: FollowingSteps) -> list[Pair]:
    """Pairs of maps whose curvature others may ask for, those that are the most likely first."""
    maps = [step for step in steps.by_site.values() if isinstance(step, MapStep)]
    whole = {step.site for step in maps if step.whole}
    sites, behind = sorted(steps.sites), sorted(whole - passed_within(steps, maps))
    return [*((p, p) for p in sites), *combinations(sites, 2), *((p, p) for p in behind)]


def held_bytes(loss: LossCurvature, steps: FollowingSteps, pair: Pair) -> int:
    """Memory of both parts of the curvature between two maps."""
    numbers = loss.positions * max(steps.length, 1) * math.prod(steps.width(site) for site in pair)
    return 2 * numbers * loss.gradient.element_size()


def _joined(chunks: Sequence[Parts]) -> Parts:
    """Chunks of positions one after the other."""
    if len(chunks) == 1:
        return chunks[0]
    functional = [part.functional for part in chunks if part.functional is not None]
    joined = torch.cat(functional) if functional else None
    return Parts(torch.cat([part.ggn for part in chunks]), joined, chunks[0].length)


def _chunks(loss: LossCurvature, length: int) -> Iterator[slice]:
    """Positions that are passed together; whole sequences where some attention couples them."""
    each = max(length, 1) * loss.width
    size = max(1, _CHUNK_BYTES // (each * loss.width * loss.gradient.element_size()))
    if length:
        size = max(1, size // length) * length
    for start in range(0, loss.positions, size):
        yield slice(start, min(start + size, loss.positions))


def peak_bytes(loss: LossCurvature, steps: FollowingSteps, pair: Pair) -> int:
    """The most memory that it takes to find the curvature between two maps, the result among it.

    Args:
        loss: Where it begins.
        steps: What there is to pass.
        pair: The two.
    """
    length, result = max(steps.length, 1), held_bytes(loss, steps, pair)
    maps = [step for step in steps.by_site.values() if isinstance(step, MapStep)]
    within = passed_within(steps, maps)
    stream = max([loss.width, *(step.width for step in maps if step.site not in within)])
    front = [steps.width(p) * steps.width(q) for p, q in combinations_with_replacement(steps.sites, 2)]
    numbers = _HELD_ON_THE_WAY * stream**2 + 2 * sum(front) + _HELD_AT_FRONT * max(front)
    heads = max((step.heads for step in steps.by_site.values() if isinstance(step, AttentionStep)), default=0)
    numbers += heads * length * stream  # cotangents of all scores
    chunk = next(_chunks(loss, steps.length))
    on_the_way = numbers * (chunk.stop - chunk.start) * length * loss.gradient.element_size()
    joined = result if chunk.stop < loss.positions else 0
    return result + max(on_the_way, joined)


def multiply_adds(loss: LossCurvature, steps: FollowingSteps) -> float:
    """What it takes to pass all steps with both parts, from sizes alone, a number that is read and written among it.

    Args:
        loss: Where it begins.
        steps: What there is to pass.
    """
    length, coupled, total = max(steps.length, 1), 1, 0.0
    matrix = (length * loss.width) ** 2 * loss.gradient.element_size()
    per_number = thresholds.MULTIPLY_ADDS_PER_NUMBER[matrix > thresholds.CACHED_BYTES]
    maps = [step for step in steps.by_site.values() if isinstance(step, MapStep)]
    for site in sorted(set(steps.by_site) - passed_within(steps, maps), reverse=True):
        step = steps.by_site[site]
        if isinstance(step, AttentionStep):
            widths = [
                coupled * step.width if coupled > 1 else 0,
                *(length * own.width for own in step.operands.values()),
            ]
            total += sum(step.multiply_adds(width, per_number) for width in widths)
            coupled = length
            continue
        columns = coupled * step.width
        numbers = per_number * length * (len(step.weight) + step.width) * columns
        if step.gain:
            total += numbers
        elif (attention := attention_before(steps, step)) is not None:
            columns = ((coupled if coupled > 1 else 0) + length) * step.width
            joint = (joint_maps(steps, attention) or {}).values()
            weights = step.weight.numel() + sum(one.weight.numel() for one in joint)
            total += attention.multiply_adds(columns, per_number) + length * weights * columns
            coupled = length
        elif (wide := wide_maps(steps, step)) is not None:
            total += length * len(wide) * wide[0].weight.numel() * step.width
            total += 2 * length * len(wide[0].weight) * step.width * columns + numbers
        else:
            total += 2 * length * step.weight.numel() * columns + numbers
    return 2 * total * loss.positions / length


@dataclass(frozen=True, eq=False)
class _Branch:
    """From what a map puts out back to where it begins.

    Attributes:
        left: ``J^T A``.
        form: How the inputs there follow from their sources.
        gradient: The gradient of the loss at these inputs.
        second_derivative: That of what the map puts out, along the gradient there; None where it is linear.
    """

    left: Callable[[Parts], Parts]
    form: Form
    gradient: Tensor
    second_derivative: Tensor | None = None


@dataclass(eq=False)
class _Backpropagation:
    """Some positions, on the way to the front.

    Attributes:
        steps: What there is to pass.
        chosen: The positions.
        live: What was reached.
    """

    steps: FollowingSteps
    chosen: slice
    live: LiveSites = field(default_factory=LiveSites)

    def on_the_way(self, loss: LossCurvature) -> Iterator[tuple[Pair, Parts]]:
        """Map after map with itself, the last one first; in the end those asked for with each other."""
        self._pass(self.steps.last, Parts(loss.curvature_at(self.chosen)), [], loss.gradient[self.chosen])
        while self.live.groups:
            at = self.live.last
            own, others, g = self.live.take(at)
            step = self.steps.by_site.get(at)
            if isinstance(step, AttentionStep):
                self._leave_attention(step, own, others, g)
                continue
            yield (at, at), own
            if step is not None:
                self._leave(step, own, others, g)
            else:
                yield from (((at, other), part) for k, part in others for other in k.sites)

    def _sequences(self, step: AttentionStep) -> slice:
        return slice(self.chosen.start // step.length, self.chosen.stop // step.length)

    def _leave_attention(self, step: AttentionStep, own: Parts, others: Others, g: Tensor) -> None:
        """From what the heads of an attention put out to the maps in front of it, each by itself."""
        sequences = self._sequences(step)
        groups = {p: self.live.of([p])[0] for p in step.sources}
        for (p, q), parts in step.curvature(own, g, sequences).items():
            self.live.add(groups[p], groups[q], parts, owned=True)
        for p, slope in step.vjp(g[..., None], sequences).items():
            groups[p].add_gradient(slope[..., 0])
        for k, part in others:
            coupled = part.coupled(step.length)
            ggn_at = step.vjp(coupled.ggn, sequences)
            rest = {} if coupled.functional is None else step.vjp(coupled.functional, sequences)
            for p, found in ggn_at.items():
                for one in k.parts:
                    self.live.add_symmetric(groups[p], one, Parts(found, rest.get(p), step.length))

    def _leave(self, step: MapStep, own: Parts, others: Others, g: Tensor) -> None:
        """From what a map puts out to the inputs of it, or of what it is taken together with, and on to its sources."""
        branch = self._branch(step, g)
        half = branch.left(own)
        crossed = [(k, half if part is own else branch.left(part)) for k, part in others]
        turned = branch.left(half.T)  # H is symmetric, and so is this
        if branch.second_derivative is not None:
            turned = turned.plus(branch.second_derivative)
        self._pass(branch.form, turned, crossed, branch.gradient)

    def _branch(self, step: MapStep, g: Tensor) -> _Branch:
        """A map alone, an MLP, or an attention with its maps."""
        W = step.weight
        if (wide := wide_maps(self.steps, step)) is not None:
            J, second_derivative, g = self._through(step, wide, g)
            return _Branch(lambda parts: parts.left(J), wide[0].form, g, second_derivative)
        if step.gain:
            return _Branch(lambda parts: parts.scaled(W), step.form, W * g)
        if (attention := attention_before(self.steps, step)) is None:
            return _Branch(lambda parts: parts.left(W), step.form, g @ W.T)
        maps, sequences = joint_maps(self.steps, attention), self._sequences(attention)
        assert maps is not None
        weights = {name: maps[one.site].weight[:, one.features.flatten()] for name, one in attention.operands.items()}
        g = g @ W.T

        def left(parts: Parts) -> Parts:
            turn = partial(attention.vjp_to_inputs, weights=weights, chosen=sequences, coupled=parts.length > 0)
            return Parts(*parts.left(W).both(turn), attention.length)

        return _Branch(
            left,
            next(iter(maps.values())).form,
            attention.vjp_to_inputs(g[..., None], weights, sequences)[..., 0],
            attention.second_derivative_at_inputs(g, weights, sequences),
        )

    def _through(self, step: MapStep, wide: Sequence[MapStep], g: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Jacobian, functional curvature and gradient at the inputs of an MLP."""
        form = step.form
        assert isinstance(form, EntryByEntry)
        g = g @ step.weight.T
        J: Tensor | None = None
        gradient: Tensor | None = None
        second_derivative: Tensor | None = None
        for one in wide:
            slope = form.first[one.site]
            # [position, input, output]: the weight of the first map, scaled, times that of the second
            scaled = one.weight.expand(len(g), -1, -1) if slope is None else one.weight * slope[self.chosen, None]
            J = _sum(J, scaled @ step.weight)
            gradient = _sum(gradient, (g if slope is None else g * slope[self.chosen]) @ one.weight.T)
        weights: dict[float, Tensor] = {one.site: one.weight for one in wide}
        for (p, q), second in form.second.items():
            found = (weights[p] * (second[self.chosen] * g)[:, None]) @ weights[q].T
            second_derivative = _sum(second_derivative, found if p == q else found + found.mT)
        assert J is not None and gradient is not None
        return J, second_derivative, gradient

    def _pass(self, form: Form, own: Parts, others: Others, g: Tensor) -> None:
        """From the inputs of a map to its sources, those with the same derivative together."""
        if isinstance(form, Norm):
            groups = self.live.of(form.sources)

            def pull(parts: Parts) -> Parts:
                return parts.each(lambda part: form.vjp(part, self.chosen))

            both = pull(pull(own).T).plus(form.second_derivative(g, self.chosen))
            self._reach(groups, groups, both, fresh=True)
            self._reach_others(
                groups, [(k, pull(part)) for k, part in others], form.vjp(g[..., None], self.chosen)[..., 0]
            )
            return
        slopes = {p: None if s is None else s[self.chosen] for p, s in form.first.items()}
        bent = {p for pair in form.second for p in pair}
        alike = [p for p, slope in slopes.items() if slope is None and p not in bent]
        classes = [alike, *([p] for p in slopes if p not in alike)] if alike else [[p] for p in slopes]
        reached = [(self.live.of(sites), sites[0]) for sites in classes]
        for n, (groups, p) in enumerate(reached):
            for columns, q in reached[n:]:
                vjp = own.scaled(slopes[p])
                vjp = vjp if slopes[q] is None else vjp.T.scaled(slopes[q]).T
                for pair in {(p, q), (q, p)} & set(form.second):
                    vjp = vjp.plus(torch.diag_embed(form.second[pair][self.chosen] * g))
                self._reach(groups, columns, vjp, fresh=vjp.ggn is not own.ggn or len(reached) == 1)
            slope = slopes[p]
            crossed = [(k, part.scaled(slope)) for k, part in others]
            self._reach_others(groups, crossed, g if slope is None else g * slope)

    def _reach(self, rows: list[SiteGroup], columns: list[SiteGroup], parts: Parts, fresh: bool) -> None:
        """The same between every two groups of rows and columns; fresh where nobody else holds it."""
        alone = len(rows) == len(columns) == 1
        for n, row in enumerate(rows):
            for column in columns[n:] if rows is columns else columns:
                self.live.add(row, column, parts, owned=alone and fresh)

    def _reach_others(self, groups: list[SiteGroup], others: Others, g: Tensor) -> None:
        """The gradient, and what sources have to do with groups that were reached before."""
        for group in groups:
            group.add_gradient(g)
            for k, part in others:
                for one in k.parts:
                    self.live.add_symmetric(group, one, part)


def _sum(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more
