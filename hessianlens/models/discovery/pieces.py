"""The blocks of one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hessianlens.models.discovery.claims import ParameterClaim
from hessianlens.models.discovery.heads import stated_heads
from hessianlens.models.discovery.packed import Packing, cut_blocks, cuts, uncut_name
from hessianlens.models.discovery.storage import added_axis, extent, head_axis, output_axis
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
    """A parameter that holds several blocks; one piece if its parts cannot be told apart."""
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
