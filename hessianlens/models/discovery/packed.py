"""Parameters that hold several projections: where each begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hessianlens.problems import Block


@dataclass(frozen=True)
class Packing:
    """What is known about a packed parameter.

    Attributes:
        order: "joined" or "grouped"; see `Rule`.
        shards: Number of equal stretches that each hold a share of every part; see `Rule`.
        query: Number of query heads, if known.
        key_value: Number of key/value heads, if known.
        outputs: Heads times width as the output projection says it, if known.
    """

    order: str = "joined"
    shards: int = 1
    query: int | None = None
    key_value: int | None = None
    outputs: int | None = None


@dataclass(frozen=True)
class Cut:
    """A part: the entries `start` to `end` of every stretch of `length` entries."""

    name: str
    start: int
    end: int
    length: int


def cuts(names: tuple[str, ...], total: int, packing: Packing) -> list[Cut] | None:
    """The parts of `total` entries, None if the sizes do not add up.

    >>> [(cut.start, cut.end) for cut in cuts(("q", "k", "v"), 16, Packing(query=4, key_value=2))]
    [(0, 8), (8, 12), (12, 16)]
    >>> cuts(("q", "k", "v"), 12, Packing("grouped", query=2))[1]  # twice q, k, v of one head
    Cut(name='k', start=2, end=4, length=6)
    """
    found = _grouped(names, packing) if packing.order == "grouped" else _joined(names, packing)
    if found is None:
        return None
    stretches, shares = found
    unit, left = divmod(total, stretches * sum(shares))
    if left or (len(names) == 3 and packing.outputs not in (None, stretches * shares[0] * unit)):
        return None
    ends = [unit * sum(shares[: i + 1]) for i in range(len(shares))]
    return [Cut(name, end - unit * share, end, ends[-1]) for name, share, end in zip(names, shares, ends, strict=True)]


Shares = tuple[int, tuple[int, ...]]
"""A number of stretches, and the relative sizes of the parts in each."""


def _joined(names: tuple[str, ...], packing: Packing) -> Shares | None:
    """Equal parts, unless fewer heads have keys and values; None if a head would lie in two stretches."""
    heads = (packing.query, packing.key_value, packing.key_value) if len(names) == 3 else ()
    if any(count and count % packing.shards for count in heads):
        return None
    known = tuple(count // packing.shards for count in heads if count)
    return packing.shards, known if len(known) == 3 else (1,) * len(names)


def _grouped(names: tuple[str, ...], packing: Packing) -> Shares | None:
    """As many stretches as groups of heads, each with the queries of the group, its key and its value."""
    groups = packing.key_value or packing.query
    if not packing.query or not groups or packing.query % groups or len(names) != 3:
        return None
    return groups, (packing.query // groups, 1, 1)


def cut_blocks(parts: list[Cut], parameter: str, tensor: Tensor, axis: int, suffix: str) -> list[Block]:
    """The blocks of a packed parameter."""
    what = "columns" if axis else "rows" if tensor.ndim > 1 else "entries"
    blocks = []
    for part in parts:
        index = [slice(None)] * tensor.ndim
        index[axis] = slice(part.start, part.end)
        note, stretch = f"{what} {part.start}:{part.end} of {parameter}", None
        if part.length < tensor.shape[axis]:
            index.insert(axis, slice(None))
            note, stretch = f"{what} {part.start}:{part.end} of every {part.length} of {parameter}", (axis, part.length)
        blocks.append(Block.of(part.name + suffix, parameter, tensor, tuple(index), note, stretch))
    return blocks


def uncut_name(names: tuple[str, ...]) -> str:
    """One name for several parts that cannot be told apart.

    >>> uncut_name(("layer0.attn.q", "layer0.attn.k", "layer0.attn.v")), uncut_name(("mlp.gate", "mlp.in"))
    ('layer0.attn.qkv', 'mlp.gate_in')
    """
    before, dot, _ = names[0].rpartition(".")
    last = sorted((name.rpartition(".")[2] for name in names), key="qkv".find)
    return before + dot + ("" if all(len(part) == 1 for part in last) else "_").join(last)
