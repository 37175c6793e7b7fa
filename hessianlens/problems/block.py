"""A named part of a parameter."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Block:
    """A named part of a parameter: a whole tensor, or a rectangular piece of a packed one.

    Attributes:
        name: The name in every architecture, such as ``layer0.attn.q``.
        parameter: The parameter it lies in, as in ``named_parameters``.
        index: A slice for every axis of that parameter.
        shape: Its own shape.
        note: What a reader should know, e.g. that the parameter is shared.

    >>> Block.of("layer0.attn.q", "c_attn.weight", torch.zeros(4, 12), (slice(None), slice(0, 4))).shape
    (4, 4)
    """

    name: str
    parameter: str
    index: tuple[slice, ...]
    shape: tuple[int, ...]
    note: str = ""

    @classmethod
    def of(
        cls, name: str, parameter: str, tensor: Tensor, index: tuple[slice, ...] | None = None, note: str = ""
    ) -> Block:
        """A block of `tensor`; the whole of it unless an index is given."""
        full = tuple(slice(None) for _ in tensor.shape) if index is None else index
        return cls(name, parameter, full, tuple(tensor[full].shape), note)

    def take(self, tensor: Tensor) -> Tensor:
        """This block of a tensor shaped as the parameter, possibly with further axes behind."""
        return tensor[self.index]

    def embed(self, piece: Tensor, like: Tensor) -> Tensor:
        """A tensor shaped as the parameter that holds `piece` in this block and zero elsewhere."""
        if piece.shape == like.shape:
            return piece
        whole = torch.zeros_like(like)
        whole[self.index] = piece
        return whole

    @property
    def numel(self) -> int:
        """Number of entries."""
        return int(torch.Size(self.shape).numel())
