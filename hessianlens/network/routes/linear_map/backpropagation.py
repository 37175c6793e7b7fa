"""The curvature at the maps behind the last attention layer, backpropagated from the end of the network.

With g and H the gradient and the Hessian of the loss at what some maps put out, and a map i with ``z_i = a_i W``, its
inputs a function of its sources p, q, ...: where i is done with,

    H_pq  +=  J_p^T W H_ii W^T J_q  +  J_p^T W H_iq  +  (J_q^T W H_ip)^T  +  sum_k (W g_i)_k  d^2 a_k / dz_p dz_q

at every position by itself. So what all maps share is looked at once, where products would go through the whole of the
network for every feature of every map. The curvature of an MLP's wide layer is never formed: its two maps are taken as
one, with ``J = W_1 diag(phi') W_2`` and ``W_1 diag(phi'' * W_2 g) W_1^T``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.network.routes.linear_map.attention_step import AttentionStep
from hessianlens.network.routes.linear_map.curvature_parts import Parts
from hessianlens.network.routes.linear_map.readout import LossCurvature
from hessianlens.network.routes.linear_map.steps import EntryByEntry, FollowingSteps, Form, MapStep

_CHUNK_BYTES = 2**22
"""Room for one matrix per position; some ten of them are held at once."""


def backpropagate_curvature(loss: LossCurvature, steps: FollowingSteps, others: int) -> dict[float, Parts]:
    """The curvature at a map, and at some behind it that are not wide.

    Args:
        loss: The curvature at the inputs of the network's last map, or at its outputs.
        steps: What follows the map.
        others: Maps behind it whose curvature is wanted too, at the most; the nearest.
    """
    maps = [step for step in steps.by_site.values() if isinstance(step, MapStep)]
    wide = {one.site for step in maps for one in _wide(steps, step) or ()}
    kept = {steps.site, *sorted({step.site for step in maps} - wide)[:others]}
    chunks: dict[float, list[Parts]] = {site: [] for site in kept}
    for chosen in _chunks(loss, steps.length):
        for at, parts in _Backpropagation(steps, chosen).on_the_way(loss):
            if at in kept:
                chunks[at].append(parts)
    return {at: _joined(found) for at, found in chunks.items()}


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


def multiply_adds(loss: LossCurvature, steps: FollowingSteps) -> float:
    """What it takes to pass all steps with both parts, from sizes alone.

    Args:
        loss: Where it begins.
        steps: What there is to pass.
    """
    width = {site: step.width for site, step in steps.by_site.items()}
    length, coupled = max(steps.length, 1), 1
    live, total = set(steps.last.sources), 0.0
    while (at := max(live)) > steps.site:
        live.remove(at)
        step = steps.by_site[at]
        around = coupled * (width[at] + sum(width.get(k, 0) for k in live))
        if isinstance(step, AttentionStep):
            columns = [coupled * width[at]] + [length * width.get(p, 0) for p in step.sources]
            total += step.multiply_adds(sum(columns) if coupled > 1 else sum(columns[1:]))
            total += step.multiply_adds(coupled * sum(width.get(k, 0) for k in live))
            coupled, sources = length, step.sources
        elif (wide := _wide(steps, step)) is None:
            total += length * (step.weight.numel() * (around + coupled * len(step.weight)) if not step.gain else 0)
            sources = step.form.sources
        else:
            inner = wide[0].weight
            total += length * (inner.numel() * width[at] * len(wide) + len(inner) * width[at] * around)
            sources = wide[0].form.sources
        live |= set(sources)
    return 2 * total * loss.positions / length


@dataclass(eq=False)
class _Backpropagation:
    """Some positions, on the way to the front.

    Attributes:
        steps: What there is to pass.
        chosen: The positions.
        hessian: Between what two maps put out, the later one first.
        gradient: At what each puts out.
    """

    steps: FollowingSteps
    chosen: slice
    hessian: dict[tuple[float, float], Parts] = field(default_factory=dict)
    gradient: dict[float, Tensor] = field(default_factory=dict)

    def on_the_way(self, loss: LossCurvature) -> Iterator[tuple[float, Parts]]:
        """Map after map, the last one first."""
        self._pass(self.steps.last, Parts(loss.curvature_at(self.chosen)), {}, loss.gradient[self.chosen])
        while (at := max(self.gradient)) > self.steps.site:
            step = self.steps.by_site[at]
            if isinstance(step, AttentionStep):
                self._leave_attention(step)
            else:
                yield at, self.hessian[at, at]
                self._leave(step)
        yield at, self.hessian[at, at]

    def _taken(self, site: float) -> tuple[Parts, dict[float, Parts], Tensor]:
        """All that is known at a site, which is left: with itself, with others, and the gradient."""
        own, g = self.hessian.pop((site, site)), self.gradient.pop(site)
        others = {k: self.hessian.pop((site, k)) for k in list(self.gradient) if (site, k) in self.hessian}
        return own, others, g

    def _leave_attention(self, step: AttentionStep) -> None:
        """From what the heads of an attention put out to the maps in front of it."""
        own, others, g = self._taken(step.site)
        sequences = slice(self.chosen.start // step.length, self.chosen.stop // step.length)
        for (p, q), parts in step.curvature(own, g, sequences).items():
            self._add(p, q, parts)
        for p, slope in step.vjp(g[..., None], sequences).items():
            self.gradient[p] = _sum(self.gradient.get(p), slope[..., 0])
        for k, part in others.items():
            coupled = part.coupled(step.length)
            ggn = step.vjp(coupled.ggn, sequences)
            rest = {} if coupled.functional is None else step.vjp(coupled.functional, sequences)
            for p, found in ggn.items():
                self._cross(p, k, Parts(found, rest.get(p), step.length))

    def _leave(self, step: MapStep) -> None:
        """From what a map puts out to what goes into it, and on to its sources."""
        own, others, g = self._taken(step.site)
        if (wide := _wide(self.steps, step)) is None:
            W, form, second_derivative = step.weight, step.form, None
            g = W * g if step.gain else g @ W.T
        else:
            W, second_derivative, g = self._through(step, wide, g)
            form = wide[0].form
        turn = Parts.scaled if step.gain else Parts.left
        turned = turn(turn(own, W).T, W)  # H is symmetric, and so is this
        if second_derivative is not None:
            turned = turned.plus(second_derivative)
        self._pass(form, turned, {k: turn(part, W) for k, part in others.items()}, g)

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
        weights = {one.site: one.weight for one in wide}
        for (p, q), second in form.second.items():
            found = (weights[p] * (second[self.chosen] * g)[:, None]) @ weights[q].T
            second_derivative = _sum(second_derivative, found if p == q else found + found.mT)
        assert J is not None and gradient is not None
        return J, second_derivative, gradient

    def _pass(self, form: Form, own: Parts, others: dict[float, Parts], g: Tensor) -> None:
        """From the inputs of a map to its sources."""
        if isinstance(form, EntryByEntry):
            slopes = {p: None if s is None else s[self.chosen] for p, s in form.first.items()}
            for p, q in combinations_with_replacement(form.sources, 2):
                vjp = own.scaled(slopes[p]).T.scaled(slopes[q]).T
                for pair in {(p, q), (q, p)} & set(form.second):
                    vjp = vjp.plus(torch.diag_embed(form.second[pair][self.chosen] * g))
                self._add(p, q, vjp)
            for p, slope in slopes.items():
                self.gradient[p] = _sum(self.gradient.get(p), g if slope is None else g * slope)
                for k, part in others.items():
                    self._cross(p, k, part.scaled(slope))
            return

        def pull(parts: Parts) -> Parts:
            return parts.each(lambda part: form.vjp(part, self.chosen))

        both = pull(pull(own).T).plus(form.second_derivative(g, self.chosen))
        slope = form.vjp(g[..., None], self.chosen)[..., 0]
        crossed = {k: pull(part) for k, part in others.items()}
        for p, q in combinations_with_replacement(form.sources, 2):
            self._add(p, q, both)
        for p in form.sources:
            self.gradient[p] = _sum(self.gradient.get(p), slope)
            for k, part in crossed.items():
                self._cross(p, k, part)

    def _cross(self, p: float, k: float, part: Parts) -> None:
        self._add(p, k, part + part.T if p == k else part)

    def _add(self, p: float, q: float, parts: Parts) -> None:
        key, parts = ((p, q), parts) if p >= q else ((q, p), parts.T)
        self.hessian[key] = self.hessian[key] + parts if key in self.hessian else parts


def _wide(steps: FollowingSteps, step: MapStep) -> list[MapStep] | None:
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


def _sum(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more
