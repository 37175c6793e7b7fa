"""The blocks of one parameter."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from hessianlens.models.discovery.claims import Claim
from hessianlens.models.discovery.heads import stated_heads
from hessianlens.models.discovery.packed import Packing, cut_blocks, cuts, uncut_name
from hessianlens.models.discovery.storage import extent, head_axis, output_axis
from hessianlens.problems import Block


@dataclass(frozen=True)
class Piece:
    """A block, and what is needed to split it by head.

    Attributes:
        block: The block.
        attention: The attention it belongs to, ``layer0.attn``; empty elsewhere.
        role: ``q``, ``k``, ``v``, ``o`` ...; empty outside an attention.
        axis: The axis of the heads; None if it has none, or is the part of a head already.
        extent: Heads times width; 0 for biases and where there are no heads.
    """

    block: Block
    attention: str = ""
    role: str = ""
    axis: int | None = None
    extent: int = 0


def attention_role(name: str) -> tuple[str, str]:
    """The attention and the role in a block's name; empty if it is not part of one.

    >>> attention_role("layer0.attn.q"), attention_role("layer0.mlp.in")
    (('layer0.attn', 'q'), ('', ''))
    """
    attention, _, role = name.rpartition(".")
    return (attention, role) if attention.endswith((".attn", ".cross")) else ("", "")


def whole_piece(model: nn.Module, claim: Claim, name: str, parameter: str, tensor: Tensor) -> Piece:
    """A parameter that is one block."""
    block = Block.of(name + claim.suffix, parameter, tensor)
    attention, role = attention_role(name)
    axis = head_axis(role, claim.suffix, output_axis(model, parameter, tensor), tensor) if attention else None
    if axis is None:
        return Piece(block)
    size = 0 if claim.suffix else extent(role, axis, block.shape)
    return Piece(block, attention, role, axis, size)


def packed_pieces(
    model: nn.Module, claim: Claim, names: tuple[str, ...], parameter: str, tensor: Tensor, outputs: int | None
) -> list[Piece]:
    """A parameter that holds several blocks; one piece if its parts cannot be told apart."""
    axis = output_axis(model, parameter, tensor)
    query, key_value = stated_heads(model, claim.path)
    packing = Packing(axis, claim.packing, query, key_value, outputs)
    parts = cuts(names, tensor.shape[axis], packing) if tensor.ndim <= 2 else None
    if parts is None:
        return [Piece(Block.of(uncut_name(names) + claim.suffix, parameter, tensor))]
    pieces = []
    for (name, start, end), block in zip(parts, cut_blocks(parts, parameter, tensor, axis, claim.suffix), strict=True):
        whole = name in names
        attention, role = attention_role(name if whole else name.rpartition(".")[0])
        size = end - start if attention and not claim.suffix else 0
        pieces.append(Piece(block, attention, role, axis if whole and attention else None, size))
    return pieces
