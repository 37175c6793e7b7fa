"""`discover`: a model in, its named blocks out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from hessianlens.errors import InputError, expect
from hessianlens.models.discovery.block_names import groups_of, name_claims, read_claims, settle
from hessianlens.models.discovery.heads import HeadLayout, layout_of, split_heads, stated_heads
from hessianlens.models.discovery.pieces import Cutter, DiscoveredBlock
from hessianlens.models.discovery.result import (
    Discovery,
    architecture_notes,
    head_notes,
    list_names,
    packing_notes,
    tie_notes,
    unknown_notes,
)
from hessianlens.problems import Block


def find_layouts(model: nn.Module, pieces: Iterable[DiscoveredBlock]) -> tuple[dict[str, HeadLayout], list[str]]:
    """The layout of every attention where one fits, and the attentions where none does."""
    grouped: dict[str, list[DiscoveredBlock]] = defaultdict(list)
    for piece in pieces:
        if piece.attention and piece.extent:
            grouped[piece.attention].append(piece)
    layouts = {attention: _layout(model, members) for attention, members in grouped.items()}
    known = {attention: layout for attention, layout in layouts.items() if layout is not None}
    return known, [attention for attention in layouts if attention not in known]


def _layout(model: nn.Module, members: list[DiscoveredBlock]) -> HeadLayout | None:
    extents: dict[str, int] = defaultdict(int)
    for piece in members:
        extents[piece.role] += piece.extent
    stated = stated_heads(model, members[0].block.parameter)[0]
    # Heads with an axis of their own need no statement, but must agree with one.
    own = {p.block.shape[0] for p in members if len(p.block.shape) == 3 and p.role not in ("k", "v")}
    counts = own | ({stated} if stated else set())
    return layout_of(extents, counts.pop()) if len(counts) == 1 else None


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
    expect(not lazy, f"model: the parameters {list_names(lazy)} have no shape yet; run the model once on a batch.")

    claims, groups = read_claims(model, parameters), groups_of(parameters)
    named = name_claims(model, claims)
    names, contested = settle(claims, named.of, groups)
    cutter = Cutter(model, parameters, {claim.parameter: claim for claim in claims}, names, groups)
    pieces = [piece for found in cutter.pieces.values() for piece in found]
    layouts, headless = find_layouts(model, pieces)
    aliases = cutter.aliases()
    decisions = (
        *architecture_notes(model, named.layers),
        *packing_notes(*cutter.packings()),
        *tie_notes(aliases, {piece.block.name: piece.block.parameter for piece in pieces}),
        *unknown_notes([name for name in cutter.unknown() if name not in contested], contested, named.layers),
        *head_notes(headless),
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
        blocks[block.name] = replace(block, note="; ".join([*filter(None, [block.note]), *also])) if also else block
        if piece.axis is not None and piece.attention in layouts:
            parts = split_heads(block, piece.axis, layouts[piece.attention].count(piece.role))
            blocks.update({part.name: part for part in parts})
    return blocks
