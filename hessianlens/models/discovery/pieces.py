"""From names to blocks: every tensor is cut once, whatever it is called."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from hessianlens.models.discovery.block_names import ParameterClaim
from hessianlens.models.discovery.heads import stated_heads
from hessianlens.models.discovery.storage import (
    Packing,
    added_axis,
    cut_blocks,
    cuts,
    extent,
    head_axis,
    output_axis,
    uncut_name,
)
from hessianlens.problems import Block


@dataclass(frozen=True)
class DiscoveredBlock:
    """A block, and what is needed to split it by head.

    Attributes:
        block: The block.
        attention: The attention it belongs to, ``layer0.attn``; empty elsewhere.
        role: ``q``, ``k``, ``v``, ``o`` ...; empty outside an attention.
        axis: The axis of the heads; None if it has none.
        extent: Heads times width; 0 for biases and where there are no heads.
    """

    block: Block
    attention: str = ""
    role: str = ""
    axis: int | None = None
    extent: int = 0


@dataclass(frozen=True)
class Sizes:
    """Sizes around a packed parameter, where they are known.

    Attributes:
        attention: Heads times width as the output projection states it.
        layer: Number of outputs of the layer itself.
    """

    attention: int | None
    layer: int | None


def attention_role(name: str) -> tuple[str, str]:
    """The attention and the role in a block's name; empty if it is not part of one.

    >>> attention_role("layer0.attn.q"), attention_role("layer0.mlp.in")
    (('layer0.attn', 'q'), ('', ''))
    """
    attention, _, role = name.rpartition(".")
    return (attention, role) if attention.endswith((".attn", ".cross")) else ("", "")


def whole_piece(model: nn.Module, claim: ParameterClaim, name: str, parameter: str, tensor: Tensor) -> DiscoveredBlock:
    """A parameter that is one block."""
    suffix = claim.name.suffix
    block = Block.of(name + suffix, parameter, tensor)
    attention, role = attention_role(name)
    axis = head_axis(role, suffix, output_axis(model, parameter, tensor), tensor) if attention else None
    if axis is None:
        return DiscoveredBlock(block)
    size = 0 if suffix else extent(role, axis, block.shape)
    return DiscoveredBlock(block, attention, role, axis, size)


def packed_pieces(
    model: nn.Module, claim: ParameterClaim, names: tuple[str, ...], parameter: str, tensor: Tensor, sizes: Sizes
) -> list[DiscoveredBlock]:
    """A parameter that holds several blocks; one piece if its parts cannot be distinguished."""
    suffix, added = claim.name.suffix, claim.name.added
    axis: int | None = output_axis(model, parameter, tensor)
    if added:
        axis = added_axis(model, claim.name.suffix, parameter, tensor, sizes.layer)
    query, key_value = stated_heads(model, claim.name.path)
    packing = Packing(claim.packing, claim.shards, query, key_value, sizes.attention)
    parts = None if axis is None or tensor.ndim > 2 else cuts(names, tensor.shape[axis], packing)
    if axis is None or parts is None:
        note = f"shared by {', '.join(name.rpartition('.')[2] for name in names)}" if added else ""
        return [DiscoveredBlock(Block.of(uncut_name(names) + suffix, parameter, tensor, note=note))]
    pieces = []
    for name, block in zip(names, cut_blocks(parts, parameter, tensor, axis, suffix), strict=True):
        attention, role = attention_role(name)
        size = 0 if suffix else block.shape[axis]
        headed = attention and suffix in ("", ".bias")
        pieces.append(DiscoveredBlock(block, attention, role, axis, size) if headed else DiscoveredBlock(block))
    return pieces


@dataclass(frozen=True)
class Cutter:
    """Cuts the parameters of a model into pieces.

    Attributes:
        model: The model.
        parameters: Its parameters, shared ones under all of their names.
        claims: What each is read as.
        names: The names of the blocks in each; none if it keeps its own.
        groups: The names of every tensor.
    """

    model: nn.Module
    parameters: dict[str, Tensor]
    claims: dict[str, ParameterClaim]
    names: dict[str, tuple[str, ...]]
    groups: list[list[str]]

    def speaker(self, group: list[str]) -> str:
        """The name, among those of a tensor, that says what it is: the first one known."""
        return next((name for name in group if self.names[name]), group[0])

    @cached_property
    def pieces(self) -> dict[str, list[DiscoveredBlock]]:
        """The pieces of every tensor, by the first of its names."""
        return {group[0]: self._cut(self.speaker(group), group[0]) for group in self.groups}

    @cached_property
    def _outputs(self) -> dict[str, int]:
        """Heads times width as the output projections state it, by attention."""
        found = {}
        for parameter, names in self.names.items():
            if len(names) == 1 and attention_role(names[0])[1] == "o":
                claim, tensor = self.claims[parameter], self.parameters[parameter]
                piece = whole_piece(self.model, claim, names[0], parameter, tensor)
                if piece.extent:
                    found[piece.attention] = piece.extent
        return found

    @cached_property
    def _widths(self) -> dict[str, int]:
        """Numbers of outputs of the layers, by path."""
        weights = {p: claim.name for p, claim in self.claims.items() if not claim.name.suffix and self.names[p]}
        shapes = {p: self.parameters[p].shape for p in weights}
        return {
            name.path: shapes[p][output_axis(self.model, p, self.parameters[p])]
            for p, name in weights.items()
            if shapes[p]
        }

    def _cut(self, read_as: str, parameter: str) -> list[DiscoveredBlock]:
        names, claim, tensor = self.names[read_as], self.claims[read_as], self.parameters[parameter]
        if not names:
            return [DiscoveredBlock(Block.of(claim.name.own, parameter, tensor))]
        if len(names) == 1:
            return [whole_piece(self.model, claim, names[0], parameter, tensor)]
        sizes = Sizes(self._outputs.get(attention_role(names[0])[0]), self._widths.get(claim.name.path))
        return packed_pieces(self.model, claim, names, parameter, tensor, sizes)

    def aliases(self) -> dict[str, tuple[str, str]]:
        """Other names of shared blocks: to the name of the block and the parameter's name behind the alias."""
        found = {}
        for group in self.groups:
            named, speaker = self.pieces[group[0]], self.speaker(group)
            for other in group:
                if other == speaker:
                    continue
                again = self._cut(other, group[0])
                if len(again) != len(named):
                    continue
                for alias, piece in zip(again, named, strict=True):
                    if alias.block.name != piece.block.name:
                        found[alias.block.name] = (piece.block.name, other)
        return found

    def unknown(self) -> list[str]:
        """Parameters that keep their own names."""
        return [group[0] for group in self.groups if not self.names[self.speaker(group)]]

    def packings(self) -> tuple[list[str], list[str]]:
        """Packed layers whose parts lie in several stretches, and packed parameters that could not be cut."""
        interleaved, uncut = [], []
        for group in self.groups:
            speaker, pieces = self.speaker(group), self.pieces[group[0]]
            names = () if self.claims[speaker].name.added else self.names[speaker]
            if (len(names) > 1 and len(pieces) == 1) or any(name.endswith(".qkv") for name in names):
                uncut.append(group[0])
            elif names and any(piece.block.stretch for piece in pieces):
                interleaved.append(self.claims[speaker].name.path)
        return interleaved, uncut
