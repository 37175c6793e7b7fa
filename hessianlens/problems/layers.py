"""Blocks by the layer that they belong to."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hessianlens.problems.block import Block

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
