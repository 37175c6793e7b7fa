"""A named part of a parameter, and blocks by layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessianlens.errors import expect


@dataclass(frozen=True)
class Block:
    """A named part of a parameter: a whole tensor, a rectangle of a packed one, or the same rectangle of every head.

    The last is for parameters that store q, k and v of one head after those of another: cut an axis into
    stretches of equal length, take the same slice of each, and join them in order.

    Attributes:
        name: The name in every architecture, such as ``layer0.attn.q``.
        parameter: The parameter it lies in, as in ``named_parameters``.
        index: A slice for every axis of that parameter; two for an axis that is cut, which stretches and what of each.
        shape: Its own shape.
        note: What a reader should know, e.g. that the parameter is shared.
        stretch: The axis that is cut and the length of a stretch; None if none is.

    >>> Block.of("layer0.attn.q", "c_attn.weight", torch.zeros(4, 12), (slice(None), slice(0, 4))).shape
    (4, 4)
    >>> rows = torch.arange(12)  # two heads of width 2: q, k, v of the first, then of the second
    >>> Block.of("layer0.attn.k", "query_key_value.bias", rows, (slice(None), slice(2, 4)), stretch=(0, 6)).take(rows)
    tensor([2, 3, 8, 9])
    """

    name: str
    parameter: str
    index: tuple[slice, ...]
    shape: tuple[int, ...]
    note: str = ""
    stretch: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        parameter: str,
        tensor: Tensor,
        index: tuple[slice, ...] | None = None,
        note: str = "",
        stretch: tuple[int, int] | None = None,
    ) -> Block:
        """A block of `tensor`; the whole of it unless an index is given."""
        full = tuple(slice(None) for _ in tensor.shape) if index is None else index
        made = cls(name, parameter, full, tuple(tensor.shape), note, stretch)
        if index is None and stretch is None:
            return made
        return replace(made, shape=tuple(made.take(torch.empty(tensor.shape, device="meta")).shape))

    def take(self, tensor: Tensor) -> Tensor:
        """This block of a tensor shaped as the parameter, possibly with further axes at the end."""
        if self.stretch is None:
            return tensor[self.index]
        axis, length = self.stretch
        return tensor.unflatten(axis, (-1, length))[self.index].flatten(axis, axis + 1)

    def embed(self, piece: Tensor, like: Tensor) -> Tensor:
        """A tensor shaped as the parameter that holds `piece` in this block and zero elsewhere."""
        if piece.shape == like.shape:
            return piece
        whole = torch.zeros_like(like)
        if self.stretch is None:
            whole[self.index] = piece
            return whole
        axis, length = self.stretch
        place = whole.unflatten(axis, (-1, length))[self.index]  # a view: an axis can always be cut
        place.copy_(piece.reshape(place.shape))
        return whole

    def part(self, name: str, axis: int, start: int, stop: int, note: str = "") -> Block:
        """The entries `start` to `stop` along an axis as a block of its own, within one stretch if that axis is cut.

        >>> whole = Block.of("q", "c", torch.zeros(12), (slice(None), slice(0, 2)), stretch=(0, 6))
        >>> whole.part("q.head1", 0, 2, 4).index
        (slice(6, 8, None),)
        """
        shape = (*self.shape[:axis], stop - start, *self.shape[axis + 1 :])
        if self.stretch is not None and self.stretch[0] == axis:
            inner, length = self.index[axis + 1], self.stretch[1]
            number, offset = divmod(start, inner.stop - inner.start)
            expect(
                offset + stop - start <= inner.stop - inner.start,
                f"part: entries {start}:{stop} of {self.name} do not lie next to each other in {self.parameter}.",
            )
            first = number * length + inner.start + offset
            index = (*self.index[:axis], slice(first, first + stop - start), *self.index[axis + 2 :])
            return Block(name, self.parameter, index, shape, note)
        at = axis + (self.stretch is not None and self.stretch[0] < axis)
        first = self.index[at].start or 0
        index = (*self.index[:at], slice(first + start, first + stop), *self.index[at + 1 :])
        return Block(name, self.parameter, index, shape, note, self.stretch)

    @property
    def numel(self) -> int:
        """Number of entries."""
        return int(torch.Size(self.shape).numel())


_LAYER = re.compile(r"(?:.*\.)?layer\d+(?=\.)")


def layer_of(name: str) -> str | None:
    """The layer a block belongs to.

    >>> layer_of("decoder.layer3.attn.q.bias"), layer_of("embed")
    ('decoder.layer3', None)
    """
    found = _LAYER.match(name)
    return found.group() if found else None


def layer_groups(blocks: Sequence[Block]) -> list[list[Block]]:
    """Blocks that share a graph: those of one layer; others stand alone.

    >>> import torch
    >>> made = [Block.of(n, n, torch.zeros(1)) for n in ("embed", "layer0.attn.q", "layer0.mlp.in", "norm_final")]
    >>> [[block.name for block in group] for group in layer_groups(made)]
    [['embed'], ['layer0.attn.q', 'layer0.mlp.in'], ['norm_final']]
    """
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(layer_of(block.name) or block.name, []).append(block)
    return list(found.values())
