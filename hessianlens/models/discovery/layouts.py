"""The heads of every attention, from what the model states and the sizes of its blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torch import nn

from hessianlens.models.discovery.heads import HeadLayout, layout_of, stated_heads
from hessianlens.models.discovery.pieces import DiscoveredBlock


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
