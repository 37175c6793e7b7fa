"""How many heads an attention has, and the part of a block that belongs to each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from hessianlens.models.discovery.paths import module_at, parent
from hessianlens.problems import Block

_QUERY = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
_KEY_VALUE = ("num_key_value_heads", "num_kv_heads", "n_key_value_heads", "n_kv_heads", "n_kv_head", "kv_heads")


@dataclass(frozen=True)
class HeadLayout:
    """Heads of one attention.

    Attributes:
        query: Number of query heads, those of o.
        key_value: Number of key and value heads; fewer in grouped-query attention.
        width: Width of a query or key head (of a value head if there is one query-key matrix).
        value_width: Width of a value head.

    >>> HeadLayout(query=8, key_value=2, width=64, value_width=64).count("k")
    2
    """

    query: int
    key_value: int
    width: int
    value_width: int

    def count(self, role: str) -> int:
        """Number of heads of q, k, v, o or qk."""
        return self.key_value if role in ("k", "v") else self.query


def stated_heads(model: nn.Module, path: str) -> tuple[int | None, int | None]:
    """Query heads and key/value heads as the modules around `path`, or their configurations, state them."""
    query = key_value = None
    for module in _outwards(model, path):
        for source in (module, getattr(module, "config", None), getattr(module, "cfg", None)):
            query = query or _integer(source, _QUERY)
            key_value = key_value or _integer(source, _KEY_VALUE)
        if query:
            break  # what is further out may describe another stack
    return query, key_value


def _outwards(model: nn.Module, path: str) -> Iterator[nn.Module]:
    while path:
        path = parent(path)
        yield module_at(model, path)


def _integer(source: object, names: tuple[str, ...]) -> int | None:
    values = (getattr(source, name, None) for name in names)
    return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), None)


def layout_of(extents: dict[str, int], query: int) -> HeadLayout | None:
    """The layout that fits the sizes (heads times width) of q, k, v, o and qk; None if none does.

    >>> layout_of({"q": 8, "k": 4, "v": 4, "o": 8}, query=4)
    HeadLayout(query=4, key_value=2, width=2, value_width=2)
    >>> layout_of({"q": 16, "k": 4, "v": 4, "o": 8}, query=4) is None
    True
    """
    value, key = extents.get("v"), extents.get("k")
    scored = extents.get("q", value if "qk" in extents else None)
    if scored is None or scored % query or extents.get("qk", 0) % query:
        return None
    width = scored // query
    shared = (key or scored) // width
    if shared * width != (key or scored) or query % shared:
        return None
    value_width = width if value is None else value // shared
    fits = value in (None, shared * value_width) and extents.get("o") in (None, query * value_width)
    return HeadLayout(query, shared, width, value_width) if fits else None


def split_heads(block: Block, axis: int, count: int) -> list[Block]:
    """The parts of a block that belong to its heads, in order.

    >>> import torch
    >>> whole = Block.of("layer0.attn.q.bias", "c_attn.bias", torch.zeros(12), (slice(4, 8),))
    >>> [(part.name, part.index) for part in split_heads(whole, axis=0, count=2)]
    [('layer0.attn.q.head0.bias', (slice(4, 6, None),)), ('layer0.attn.q.head1.bias', (slice(6, 8, None),))]
    """
    width = block.shape[axis] // count
    starts = {head_name(block.name, head): head * width for head in range(count)}
    return [block.part(name, axis, start, start + width, f"part of {block.name}") for name, start in starts.items()]


def head_name(name: str, head: int) -> str:
    """The name of a head's part of a block; ``.bias`` stays last."""
    bias = ".bias" if name.endswith(".bias") else ""
    return f"{name.removesuffix('.bias')}.head{head}{bias}"
