"""Parameters that hold several projections: where each begins and ends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hessianlens.models.discovery.heads import head_name
from hessianlens.problems import Block


@dataclass(frozen=True)
class Packing:
    """What is known about a packed parameter.

    Attributes:
        axis: The axis along which its parts follow each other.
        order: "joined" or "grouped"; see `Rule`.
        query: Number of query heads, if known.
        key_value: Number of key/value heads, if known.
        outputs: Heads times width as the output projection says it, if known.
    """

    axis: int
    order: str = "joined"
    query: int | None = None
    key_value: int | None = None
    outputs: int | None = None


Cut = tuple[str, int, int]
"""A name with the beginning and the end of its part."""


def cuts(names: tuple[str, ...], total: int, packing: Packing) -> list[Cut] | None:
    """The parts of `total` entries, None if the sizes do not add up.

    >>> cuts(("q", "k", "v"), 16, Packing(axis=0, query=4, key_value=2))
    [('q', 0, 8), ('k', 8, 12), ('v', 12, 16)]
    >>> [name for name, _, _ in cuts(("q", "k", "v"), 12, Packing(axis=0, order="grouped", query=2))]
    ['q.head0', 'q.head1', 'k.head0', 'k.head1', 'v.head0', 'v.head1']
    """
    if packing.order == "grouped" and packing.key_value != 1:
        return _grouped(names, total, packing)
    shares = _shares(names, packing)
    unit, left = divmod(total, sum(shares))
    if left or (len(names) == 3 and packing.outputs not in (None, shares[0] * unit)):
        return None
    ends = [unit * sum(shares[: i + 1]) for i in range(len(shares))]
    return list(zip(names, [0, *ends[:-1]], ends, strict=True))


def _shares(names: tuple[str, ...], packing: Packing) -> tuple[int, ...]:
    """Relative sizes: equal ones, unless fewer heads have keys and values."""
    if len(names) == 3 and packing.query and packing.key_value:
        return (packing.query, packing.key_value, packing.key_value)
    return (1,) * len(names)


def _grouped(names: tuple[str, ...], total: int, packing: Packing) -> list[Cut] | None:
    """Group by group: its queries, then its key, then its value."""
    if not packing.query or len(names) != 3:
        return None
    groups = packing.key_value or packing.query
    width, left = divmod(total, packing.query + 2 * groups)
    if left or packing.query % groups or packing.outputs not in (None, packing.query * width):
        return None
    share = packing.query // groups
    found: list[list[Cut]] = [[], [], []]
    for slot in range(packing.query + 2 * groups):
        group, within = divmod(slot, share + 2)
        kind = max(0, within - share + 1)
        head = group * share + within if kind == 0 else group
        found[kind].append((head_name(names[kind], head), slot * width, (slot + 1) * width))
    return [cut for kind in found for cut in kind]


def cut_blocks(parts: list[Cut], parameter: str, tensor: Tensor, axis: int, suffix: str) -> list[Block]:
    """The blocks of a packed parameter."""
    what = "columns" if axis else "rows" if tensor.ndim > 1 else "entries"
    blocks = []
    for name, start, end in parts:
        index = tuple(slice(start, end) if a == axis else slice(None) for a in range(tensor.ndim))
        note = f"{what} {start}:{end} of {parameter}"
        blocks.append(Block.of(name + suffix, parameter, tensor, index, note))
    return blocks


def uncut_name(names: tuple[str, ...]) -> str:
    """One name for several parts that cannot be told apart.

    >>> uncut_name(("layer0.attn.q", "layer0.attn.k", "layer0.attn.v")), uncut_name(("mlp.gate", "mlp.in"))
    ('layer0.attn.qkv', 'mlp.gate_in')
    """
    before, dot, _ = names[0].rpartition(".")
    last = [name.rpartition(".")[2] for name in names]
    return before + dot + ("" if all(len(part) == 1 for part in last) else "_").join(last)
