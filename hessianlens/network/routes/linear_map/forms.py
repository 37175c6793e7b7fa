"""How the inputs of a map follow from what maps before it put out, at every position by itself.

Two forms are known again by random derivatives:

    entry by entry   a_k = f(z_k, z'_k, ...)             a sum with the stream, an activation, a gate
    norm             a = P t / sigma(t),  t = z + z' + ...   with P the identity, or what takes the mean away;
                                                         of all features, or of those of every head
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessianlens.derivatives.difference import random_like
from hessianlens.network.base.operands import Rows, last_axis_rows
from hessianlens.network.base.recognition import close


@dataclass(frozen=True)
class Layout:
    """Where the positions of a batch lie in tensors, whose features may be split by head.

    Attributes:
        sequences: How many.
        length: Positions of each.

    >>> layout = Layout(2, 3)
    >>> [tuple(layout.rows(torch.zeros(shape)).shape) for shape in ((2, 3, 8), (6, 8), (2, 3, 4, 2), (2, 4, 3, 2))]
    [(6, 8), (6, 8), (6, 8), (6, 8)]
    """

    sequences: int
    length: int

    def rows(self, tensor: Tensor) -> Tensor | None:
        """``[position, feature]``; None where the axes are others."""
        reader = self.reader(tensor)
        return None if reader is None else reader(tensor)

    def reader(self, like: Tensor) -> Rows | None:
        """The way to the rows of tensors whose axes are those of a given one; None where they are others.

        Where there are as many heads as positions, the axis that is further apart in memory has the positions: heads
        are cut out of features.
        """
        both, positions = (self.sequences, self.length), self.sequences * self.length
        by_head = like.ndim == 4 and (like.shape[0], like.shape[2]) == both
        if by_head and (like.shape[1] != self.length or like.stride(1) < like.stride(2)):
            return lambda tensor: tensor.transpose(1, 2).reshape(positions, -1)
        if tuple(like.shape[:2]) == both or like.shape[:1] == (positions,):
            return lambda tensor: tensor.reshape(positions, -1)
        if like.ndim > 1 and like[..., 0].numel() == positions:
            return last_axis_rows
        return None


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
        scale: ``1 / sigma``, ``[position, 1]``, or one for every head.
        centred: Whether P takes the mean away.
    """

    sources: tuple[float, ...]
    outputs: Tensor
    scale: Tensor
    centred: bool

    @property
    def heads(self) -> int:
        """Groups of features with a norm of their own."""
        return self.scale.shape[1]

    def _by_head(self, chosen: slice) -> tuple[Tensor, Tensor]:
        """A and 1 / sigma, with the heads of a position as positions."""
        return self.outputs[chosen].unflatten(1, (self.heads, -1)).flatten(0, 1), self.scale[chosen].reshape(-1, 1)

    def vjp(self, matrices: Tensor, chosen: slice) -> Tensor:
        """``J^T A`` of every position, ``[position, feature, .]``: J is symmetric, ``(P - a a^T / d) / sigma``."""
        a, scale = (one[..., None] for one in self._by_head(chosen))
        given = matrices.unflatten(1, (self.heads, -1)).flatten(0, 1)
        along = (a.transpose(1, 2) / a.shape[1]) @ given
        found = torch.baddbmm(given, a, along, alpha=-1)
        if self.centred:
            found -= found.mean(1, keepdim=True)
        return found.mul_(scale).unflatten(0, (-1, self.heads)).flatten(1, 2)

    def second_derivative(self, gradient: Tensor, chosen: slice) -> Tensor:
        """``sum_k g_k d^2 a_k / dt^2`` of every position.

        ``-(P g a^T + a (P g)^T + (g . a) (P - 3 a a^T / d)) / (d sigma^2)``
        """
        (a, scale), g = self._by_head(chosen), gradient.unflatten(1, (self.heads, -1)).flatten(0, 1)
        width = a.shape[1]
        v = g - g.mean(1, keepdim=True) if self.centred else g
        along = (g * a).sum(1, keepdim=True)
        left = torch.stack([v - 3 / width * along * a, a], 2)
        right = torch.stack([a, v], 2)
        found = left @ right.transpose(1, 2)
        found.diagonal(dim1=1, dim2=2).add_(along)
        if self.centred:
            found -= (along / width)[..., None]
        found.mul_((-(scale**2) / width)[..., None])
        if self.heads == 1:
            return found
        total = found.new_zeros(len(gradient), self.heads, width, self.heads, width)
        total.diagonal(dim1=1, dim2=3).copy_(found.unflatten(0, (-1, self.heads)).movedim(1, -1))
        return total.flatten(3).flatten(1, 2)


Form = EntryByEntry | Norm


HALF = 0.25
"""The second half of what a map puts out, where a gate is packed with what it gates, has the map's site plus this."""


def form_of(value: Tensor, sources: Mapping[float, Tensor], layout: Layout) -> Form | None:
    """How a value follows from its sources; None where it has neither form.

    Args:
        value: What a map is multiplied with.
        sources: Leaves that it depends on, by site.
        layout: Of the positions.
    """
    read, given = layout.reader(value), {site: layout.reader(leaf) for site, leaf in sources.items()}
    if read is None or any(one is None for one in given.values()):
        return None
    leaves = {
        site: _Source(leaf, one) for (site, leaf), one in zip(sources.items(), given.values(), strict=True) if one
    }
    width = read(value).shape[1]
    ((site, first), *others) = leaves.items()
    if not others and first.rows(first.leaf).shape[1] == 2 * width:
        leaves = {site: first.part(slice(0, width)), site + HALF: first.part(slice(width, None))}
    if any(one.rows(one.leaf).shape != read(value).shape for one in leaves.values()):
        return None
    return _entry_by_entry(value, read, leaves) or _norm(value, read, leaves)


@dataclass(frozen=True, eq=False)
class _Source:
    """What a map puts out, cut from what made it, and the way to its rows."""

    leaf: Tensor
    rows: Rows

    def part(self, features: slice) -> _Source:
        """Some of its features."""
        return _Source(self.leaf, lambda tensor: self.rows(tensor)[:, features])


def _slope(value: Tensor, read: Rows, source: _Source, graph: bool = False) -> Tensor | None:
    """``dv_k / dx_k`` by position, if no entry depends on another: a random cotangent must come back entry by entry."""
    drawn = random_like(value)
    found, vjp = (
        torch.autograd.grad(value, source.leaf, cotangent, retain_graph=True, create_graph=graph, allow_unused=True)[0]
        for cotangent in (torch.ones_like(value), drawn)
    )
    if found is None or vjp is None:
        return torch.zeros_like(source.rows(source.leaf))
    slope = source.rows(found)
    return slope if close(source.rows(vjp).detach(), (read(drawn) * slope).detach()) else None


def _entry_by_entry(value: Tensor, read: Rows, sources: Mapping[float, _Source]) -> EntryByEntry | None:
    slopes: dict[float, Tensor] = {}
    for site, source in sources.items():
        slope = _slope(value, read, source, graph=True)
        if slope is None:
            return None
        slopes[site] = slope
    second = {}
    for one, other in combinations_with_replacement(sources, 2):
        if slopes[one].requires_grad:
            second_slope = _slope(slopes[one], last_axis_rows, sources[other])
            if second_slope is None:
                return None
            if bool(second_slope.any()):
                second[one, other] = second_slope.detach()
    first = {site: slope.detach() for site, slope in slopes.items()}
    return EntryByEntry({site: None if bool((slope == 1).all()) else slope for site, slope in first.items()}, second)


def _norm(value: Tensor, read: Rows, sources: Mapping[float, _Source]) -> Norm | None:
    leaves, readers = [one.leaf for one in sources.values()], [one.rows for one in sources.values()]
    drawn = [random_like(value, seed) for seed in range(2)]
    vjp, more = (torch.autograd.grad(value, leaves, one, retain_graph=True, create_graph=True) for one in drawn)
    flat = [rows(one) for rows, one in zip(readers, vjp, strict=True)]
    if any(not torch.equal(one, flat[0]) for one in flat[1:]) or not flat[0].requires_grad:
        return None
    outputs, heads = read(value.detach()), read(value).shape[1] // value.shape[-1]
    # Two vectors at every position: one alone may lie along a, where the scale cannot be seen.
    c = torch.stack([read(one) for one in drawn], -1)
    r = torch.stack([readers[0](one.detach()) for one in (vjp[0], more[0])], -1)
    for centred in (True, False):
        unit = Norm(tuple(sources), outputs, outputs.new_ones(len(outputs), heads), centred)
        expected = unit.vjp(c, slice(None))
        products, squares = ((one * expected).unflatten(1, (heads, -1)).sum((-1, -2)) for one in (r, expected))
        found = Norm(tuple(sources), outputs, products / squares, centred)
        scaled = expected * found.scale.repeat_interleave(value.shape[-1], 1)[..., None]
        if close(scaled, r) and _curves_like(found, flat[0], c[..., 0], list(sources.values())):
            return found
    return None


def _curves_like(norm: Norm, vjp: Tensor, cotangent: Tensor, sources: Sequence[_Source]) -> bool:
    """Whether its second derivative is that of the network, between any two sources."""
    u, leaves = random_like(vjp, seed=1), [one.leaf for one in sources]
    hvp = torch.autograd.grad(vjp, leaves, u, retain_graph=True, allow_unused=True)
    expected = (norm.second_derivative(cotangent, slice(None)) @ u[..., None])[..., 0]
    return all(one is not None and close(own.rows(one), expected) for own, one in zip(sources, hvp, strict=True))
