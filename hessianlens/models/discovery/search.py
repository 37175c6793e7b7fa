"""`discover`: a model in, its named blocks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hessianlens.errors import InputError, expect
from hessianlens.models.discovery import notes
from hessianlens.models.discovery.claims import read_claims
from hessianlens.models.discovery.cutter import Cutter
from hessianlens.models.discovery.heads import HeadLayout, split_heads
from hessianlens.models.discovery.layouts import find_layouts
from hessianlens.models.discovery.names import name_claims
from hessianlens.models.discovery.pieces import DiscoveredBlock
from hessianlens.models.discovery.result import Discovery
from hessianlens.models.discovery.sharing import groups_of, settle
from hessianlens.problems import Block


def discover(model: nn.Module, heads: bool = False) -> Discovery:
    """Find and name the blocks of a model: the same names in every architecture.

    Parameters are recognised by their names (see `Rule` and `register_rule`); packed ones are cut into their parts;
    shared ones are named once. What is not recognised is a block under its own name, so nothing is lost.

    Args:
        model: Any module.
        heads: Also give the part of every head of q, k, v and o, ``layer0.attn.q.head3``, behind the whole. These
            overlap with it; `Discovery.head_blocks` gives them without that.

    >>> found = discover(nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=4, bias=False))
    >>> {name: block.shape for name, block in found.blocks.items() if "attn" in name}
    {'layer0.attn.q': (8, 8), 'layer0.attn.k': (8, 8), 'layer0.attn.v': (8, 8), 'layer0.attn.o': (8, 8)}
    >>> found.heads[0]
    HeadLayout(query=2, key_value=2, width=4, value_width=4)
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model: got {type(model).__name__}, expected a torch nn.Module.")
    parameters: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    expect(bool(parameters), f"model: {type(model).__name__} has no parameters, expected at least one.")
    lazy = [name for name, tensor in parameters.items() if is_lazy(tensor)]
    expect(not lazy, f"model: the parameters {notes.listed(lazy)} have no shape yet; run the model once on a batch.")

    claims, groups = read_claims(model, parameters), groups_of(parameters)
    named = name_claims(model, claims)
    names, contested = settle(claims, named.of, groups)
    cutter = Cutter(model, parameters, {claim.parameter: claim for claim in claims}, names, groups)
    pieces = [piece for found in cutter.pieces.values() for piece in found]
    layouts, headless = find_layouts(model, pieces)
    aliases = cutter.aliases()
    decisions = (
        *notes.architecture_notes(model, named.layers),
        *notes.packing_notes(*cutter.packings()),
        *notes.tie_notes(aliases, {piece.block.name: piece.block.parameter for piece in pieces}),
        *notes.unknown_notes([name for name in cutter.unknown() if name not in contested], contested, named.layers),
        *notes.head_notes(headless),
    )
    return Discovery(
        blocks=_blocks(pieces, layouts if heads else {}, aliases),
        notes=decisions,
        layer_names=named.layers,
        layouts=layouts,
        aliases={alias: name for alias, (name, _) in aliases.items()},
        head_axes={p.block.name: p.axis for p in pieces if p.axis is not None and p.attention in layouts},
    )


def _blocks(
    pieces: Iterable[DiscoveredBlock], layouts: Mapping[str, HeadLayout], aliases: Mapping[str, tuple[str, str]]
) -> dict[str, Block]:
    """The blocks in order, with the parts of heads behind them where `layouts` knows these."""
    shared: dict[str, list[str]] = {}
    for alias, (name, parameter) in aliases.items():
        shared.setdefault(name, []).append(f"{alias} ({parameter})")
    blocks = {}
    for piece in pieces:
        block = piece.block
        also = [f"shared with {', '.join(shared[block.name])}"] if block.name in shared else []
        blocks[block.name] = replace(block, note="; ".join([*filter(None, [block.note]), *also]))
        if piece.axis is not None and piece.attention in layouts:
            parts = split_heads(block, piece.axis, layouts[piece.attention].count(piece.role))
            blocks.update({part.name: part for part in parts})
    return blocks
