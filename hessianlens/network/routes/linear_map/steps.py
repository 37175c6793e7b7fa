"""What lies between the linear maps behind a site, step by step, as far as it has one of two simple forms.

The outputs of all maps are cut from what made them, so that the inputs ``a`` of a map are a function of the outputs of
some maps before it, its sources. Two forms are known again by random derivatives:

    entry by entry   a_k = f(z_k, z'_k, ...)             a sum with the stream, an activation, a gate
    norm             a = P t / sigma(t),  t = z + z' + ...   with P the identity, or what takes the mean away

Anything else, attention above all, has no step here, and is left to products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.network.base.hooks import Hooks
from hessianlens.network.base.recognition import close, entrywise_slope
from hessianlens.network.base.uses import Kind, Use
from hessianlens.problems import Batch, Problem


@dataclass(frozen=True, eq=False)
class EntryByEntry:
    """``a_k = f(z_k, z'_k, ...)``.

    Attributes:
        first: df/dz of every source, ``[position, feature]``; None where it is one everywhere.
        second: d^2 f / dz dz' of pairs of sources that have any, the same.
    """

    first: dict[int, Tensor | None]
    second: dict[tuple[int, int], Tensor]

    @property
    def sources(self) -> tuple[int, ...]:
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

    sources: tuple[int, ...]
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


@dataclass(frozen=True, eq=False)
class FollowingSteps:
    """All that follows a site, as far as the inputs of the network's last map.

    Attributes:
        site: The site.
        by_site: The steps.
        last: How the inputs of the last map follow from their sources.
        shifted: The map behind which a bias is added by itself, by the parameter of the bias.
    """

    site: int
    by_site: dict[int, MapStep]
    last: Form
    shifted: dict[str, int]


def downstream_steps(problem: Problem, batch: Batch, first: Use, last: Use) -> FollowingSteps | None:
    """What follows a map; None where something of it has no simple form.

    Args:
        problem: From `hessianlens.problem`.
        batch: One batch of it.
        first: The map, or a bias that is added behind one by itself.
        last: The network's last map.
    """
    with problem.scope(), torch.enable_grad(), Hooks(problem.params, cut=True) as hooks:
        problem.forward(problem.params, batch)
    shifted = {parameter: site for site, parameter in hooks.shifts.items()}
    site = shifted.get(first.parameter, first.site)
    if site not in hooks.leaves:
        return None
    reached: dict[int, Tensor] = {site: hooks.leaves[site]}
    found: dict[int, MapStep] = {}
    uses = [use for use in hooks.record.uses if use.inputs is not None and site < use.site <= last.site]
    for use in uses:
        assert use.inputs is not None
        sources = _sources(use.inputs, reached)
        if not sources:
            continue
        form = _form(use.inputs, sources)
        if form is None or len([one for one in uses if one.site == use.site]) > 1:
            return None
        if use.site == last.site:
            return FollowingSteps(site, found, form, shifted)
        weight = _weight(problem, hooks, use)
        if weight is None:
            return None
        found[use.site] = MapStep(use.site, weight, form, id(use.inputs))
        reached[use.site] = hooks.leaves[use.site]
    return None


def _sources(value: Tensor, leaves: Mapping[int, Tensor]) -> dict[int, Tensor]:
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


def _form(value: Tensor, sources: Mapping[int, Tensor]) -> Form | None:
    if any(leaf.numel() != value.numel() or leaf.shape[-1] != value.shape[-1] for leaf in sources.values()):
        return None
    return _entry_by_entry(value, sources) or _norm(value, sources)


def _entry_by_entry(value: Tensor, sources: Mapping[int, Tensor]) -> EntryByEntry | None:
    slopes: dict[int, Tensor] = {}
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


def _norm(value: Tensor, sources: Mapping[int, Tensor]) -> Norm | None:
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
